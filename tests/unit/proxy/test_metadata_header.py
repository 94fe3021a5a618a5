"""The header's text becomes an envelope that the ingester reads, whatever it holds."""

import json
from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inference_store.inference.metadata import read_metadata
from inference_store.proxy.exchange import from_header

NAME = "inference-store-metadata"
ITEM = '{"key": "frame", "type": "int", "value": "7"}'


def list_keys(envelope: bytes | None) -> dict[str, object]:
    metadata = read_metadata(envelope)
    return {entry.key: entry.value for entry in metadata.entries}


def test_without_the_header_there_is_no_metadata() -> None:
    assert from_header([("content-type", "application/json")]) is None
    assert from_header([(NAME, "  ")]) is None


def test_every_form_of_the_envelope_is_read() -> None:
    for text in (f"[{ITEM}]", f'{{"extended_metadata": [{ITEM}]}}', ITEM):
        assert list_keys(from_header([(NAME, text)])) == {"frame": "7"}


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_distinguishes_utf_8_from_latin_1(encoding: str) -> None:
    raw = '[{"key": "city", "type": "str", "value": "Zürich"}]'.encode(encoding)
    assert list_keys(from_header([(NAME, raw.decode("latin-1"))])) == {"city": "Zürich"}


def test_several_headers_are_one_list_and_the_last_wins() -> None:
    other = '[{"key": "frame", "type": "int", "value": "8"}]'
    result = from_header([(NAME, f"[{ITEM}]"), (NAME, other), ("other", "x")])
    assert list_keys(result) == {"frame": "8"}


def test_headers_that_a_proxy_joined_are_read() -> None:
    assert list_keys(from_header([(NAME, f"[{ITEM}], [{ITEM.replace('frame', 'shot')}]")])) == {
        "frame": "7",
        "shot": "7",
    }


def test_keeps_and_reports_values_that_are_not_json() -> None:
    result = from_header([(NAME, "frame=7")])
    assert result == b'"frame=7"'
    assert "not JSON" in (read_metadata(result).problem or "")


@given(st.lists(st.text()))
@example(["1\0"])
@example(["1\0", "2"])
def test_any_text_becomes_json(values: list[str]) -> None:
    result = from_header([(NAME, value) for value in values])
    if result is not None:
        json.loads(result)


def test_over_grpc_it_may_be_binary() -> None:
    raw = '[{"key": "city", "type": "str", "value": "Zürich"}]'.encode()
    text = b64encode(raw).rstrip(b"=").decode()
    assert list_keys(from_header([(f"{NAME}-bin", text)])) == {"city": "Zürich"}
