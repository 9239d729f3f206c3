"""The account as one JSON document that reads back to an equal account.

Takes an Account; gives text whose field names are the records', in base units (seconds, bytes, FLOP), unknown as null.
`schema` describes it to other programs. `from_json` refuses what is no account of this version, in one line.
"""

from types import MappingProxyType
from typing import Any

import msgspec

from ridgeline.base.errors import BadText
from ridgeline.base.records import Account

SCHEMA_VERSION = 1


def to_json(account: Account) -> str:
    """Indented, ending in a newline, always the same for the same account."""
    encoded = msgspec.json.encode(account, enc_hook=_plain)
    return msgspec.json.format(encoded, indent=1).decode() + "\n"


def from_json(text: str) -> Account:
    """The account that `to_json` wrote. Raises BadText."""
    try:
        account = msgspec.json.decode(text, type=Account)
    except msgspec.DecodeError as error:
        raise BadText(1, text[:60], f"no account of a step ({error})") from error
    if account.schema_version != SCHEMA_VERSION:
        raise BadText(1, text[:60], f"schema_version {account.schema_version} is not {SCHEMA_VERSION}")
    return account


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return msgspec.json.schema(Account)


def _plain(value: Any) -> dict[Any, Any]:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError(f"no JSON for {type(value).__name__}")
