"""The header's text becomes an envelope that the ingester reads, whatever it holds."""

import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.inference.metadata import read_metadata
from inference_store.proxy.metadata_header import from_header

NAME = "inference-store-metadata"
ITEM = '{"key": "frame", "type": "int", "value": "7"}'


def keys(envelope: bytes | None) -> dict[str, object]:
    found = read_metadata(envelope)
    return {entry.key: entry.value for entry in found.entries}


def test_without_the_header_there_is_no_metadata() -> None:
    assert from_header([("content-type", "application/json")]) is None
    assert from_header([(NAME, "  ")]) is None


@pytest.mark.parametrize("text", [f"[{ITEM}]", f'{{"extended_metadata": [{ITEM}]}}', ITEM])
def test_every_form_of_the_envelope_is_read(text: str) -> None:
    assert keys(from_header([(NAME, text)])) == {"frame": "7"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_utf_8_and_latin_1_are_told_apart(encoding: str) -> None:
    raw = '[{"key": "city", "type": "str", "value": "Zürich"}]'.encode(encoding)
    assert keys(from_header([(NAME, raw.decode("latin-1"))])) == {"city": "Zürich"}


def test_several_headers_are_one_list_and_the_last_wins() -> None:
    other = '[{"key": "frame", "type": "int", "value": "8"}]'
    found = from_header([(NAME, f"[{ITEM}]"), (NAME, other), ("other", "x")])
    assert keys(found) == {"frame": "8"}


def test_headers_that_a_proxy_joined_are_read() -> None:
    assert keys(from_header([(NAME, f"[{ITEM}], [{ITEM.replace('frame', 'shot')}]")])) == {
        "frame": "7",
        "shot": "7",
    }


def test_what_is_not_json_is_kept_and_said() -> None:
    found = from_header([(NAME, "frame=7")])
    assert found == b'"frame=7"'
    assert "not JSON" in (read_metadata(found).problem or "")


@given(st.lists(st.text()))
@example(["1\0"])
@example(["1\0", "2"])
def test_any_text_becomes_json(values: list[str]) -> None:
    found = from_header([(NAME, value) for value in values])
    if found is not None:
        json.loads(found)


def test_over_grpc_it_may_be_binary() -> None:
    raw = '[{"key": "city", "type": "str", "value": "Zürich"}]'.encode()
    text = b64encode(raw).rstrip(b"=").decode()
    assert keys(from_header([(f"{NAME}-bin", text)])) == {"city": "Zürich"}
