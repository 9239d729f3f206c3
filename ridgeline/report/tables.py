"""Plain tables and paragraphs of the text views, on a rich console.

Takes headings and cells that are text already; gives tables that keep their lines whole in a pipe.
"""

import sys
from textwrap import wrap
from typing import TextIO

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_RULE = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")  # one line under the heading, nothing else
PAGE_WIDTH = 100  # of running text
PIPE_WIDTH = 120


def console_for(stream: TextIO | None = None) -> Console:
    """A console that does not fold lines at 80 columns when its output goes to a file or a pipe."""
    stream = stream or sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False)


def plain_table(*columns: str | tuple[str, str], gap: int = 0) -> Table:
    """A plain table. A column is its heading, or (heading, "left"); but the first, columns are on the right."""
    table = Table(box=_RULE, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        heading, side = (column, "right" if index else "left") if isinstance(column, str) else column
        last_text = side == "left" and index > 0 and index == len(columns) - 1
        table.add_column(heading, justify="left" if side == "left" else "right", no_wrap=not last_text, vertical="top")
    return table


def paragraph(console: Console, text: str, indent: str, hanging: str = "  ", style: str = "") -> None:
    """Running text; all lines but the first are indented by `hanging` more. Long words stay whole."""
    width = min(console.width, PAGE_WIDTH)
    lines = wrap(text, width, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False)
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def footnotes(console: Console, *notes: str) -> None:
    """Notes under a table, after an empty line; empty ones are left out."""
    console.print()
    for note in notes:
        if note:
            paragraph(console, note, "")
