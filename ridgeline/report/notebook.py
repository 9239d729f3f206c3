"""The account in a notebook: the page in a frame of its own, so that neither's style reaches the other.

Takes an Account; gives the HTML that a `_repr_html_` method returns.
"""

from html import escape

from ridgeline.base.records import Account
from ridgeline.report.page import to_html

HEIGHT_PX = 720


def repr_html(account: Account) -> str:
    """A frame that holds the whole page and needs no network."""
    return (
        f'<iframe srcdoc="{escape(to_html(account), quote=True)}" sandbox="allow-scripts" title="Ridgeline" '
        f'style="width:100%;height:{HEIGHT_PX}px;border:0"></iframe>'
    )
