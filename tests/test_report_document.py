"""The account as JSON: one document, the records' names, equal when read back."""

import json

import msgspec
import pytest
from accounts import EMPTY, FLOPS, GPT
from test_report_terminal import text

from ridgeline.base.errors import BadText
from ridgeline.base.records import Account
from ridgeline.report.document import from_json, schema, to_json


@pytest.mark.parametrize("account", [GPT, EMPTY], ids=["gpt", "empty"])
def test_reads_back_equal(account: Account) -> None:
    again = from_json(to_json(account))
    assert again == account
    assert text(again) == text(account)  # and every view of it


def test_names_and_units() -> None:
    content = json.loads(to_json(GPT))
    assert list(content)[:4] == ["schema_version", "script", "device_id", "device_name"]
    kernel = content["graphs"][0]["kernels"][0]
    assert kernel["operators"] == ["aten.embedding.default", "aten.embedding.default", "aten.add.Tensor"]
    assert kernel["work"]["bytes_written"] == 4096 * 192 * 4
    assert kernel["measured"]["count"] == 10
    assert content["graphs"][0]["kernels"][-1]["work"]["flops"] is None  # unknown, not zero
    assert content["elsewhere"][2]["eager_s"] is None
    known = [k for g in content["graphs"] for k in g["kernels"] if k["work"]["flops"] is not None]
    assert sum(k["calls"] * sum(k["work"]["flops"].values()) for k in known) == FLOPS


def test_schema_names_every_field() -> None:
    parts = schema()["$defs"]
    content = json.loads(to_json(GPT))
    assert set(parts["Account"]["properties"]) == set(content)
    assert set(parts["KernelAccount"]["properties"]) == set(content["graphs"][0]["kernels"][0])
    assert set(parts["Account"]["required"]) == set(content) - {"notes", "ceilings"}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("", "truncated"),
        ("{}", "missing required field `schema_version`"),
        ("[1, 2]", "Expected `object`"),
        (to_json(GPT)[:-400], "truncated"),
        (to_json(GPT).replace('"calls": 4,', '"calls": "four",', 1), r"Expected `float`, got `str` - at `\$.graphs"),
        (to_json(EMPTY).replace('"schema_version": 1', '"schema_version": 2'), "schema_version 2 is not 1"),
    ],
)
def test_what_is_no_account_is_refused_in_one_line(document: str, why: str) -> None:
    with pytest.raises(BadText, match=why) as caught:
        from_json(document)
    assert "\n" not in str(caught.value)


def test_one_document() -> None:
    document = to_json(GPT)
    assert document.endswith("}\n") and msgspec.json.decode(document) == json.loads(document)
