"""Whatever the bytes: no error, nothing that Postgres could not hold, nothing twice."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.json_text import storable
from inference_store.inference.metadata import (
    METADATA_TYPES,
    Leaf,
    Metadata,
    MetadataCaps,
    Presence,
    decode_entries,
    encode_entries,
    read_metadata,
)
from tests.properties import draw_json

CAPS = MetadataCaps()
_NAMES = [name for entry in METADATA_TYPES.values() for name in entry.accepted]
_TEXT = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["987", "1e999", "1e200000", "NaN", "true", "2026-11-01T00:00:00Z", '{"a": [1]}', "\0"]
)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXT
_VALUE = draw_json(_SCALARS, _TEXT, leaves=12)
_KEY = st.sampled_from(["a", "a.b", "a[]", "latitude", "dataset_split"]) | _TEXT
_ITEM = st.fixed_dictionaries(
    {"key": _KEY, "type": st.sampled_from(_NAMES) | _TEXT, "value": _VALUE | _VALUE.map(json.dumps)}
)
_LIST = st.lists(_ITEM | _VALUE, max_size=5)
_SECTIONS = st.fixed_dictionaries(
    {}, optional={"standard_metadata": _VALUE | _LIST, "extended_metadata": _LIST | _VALUE}
)
_DOCUMENT = (
    _LIST
    | _SECTIONS
    | _VALUE
    | st.fixed_dictionaries(
        {"metadata": _LIST | _SECTIONS | _LIST.map(json.dumps), "event": _VALUE}
    )
)


def _is_fit_for_postgres(metadata: Metadata) -> None:
    assert len(metadata.leaves) == len(
        {(row.name, row.family, row.value) for row in metadata.leaves}
    )
    assert len(metadata.presences) == len({row.name for row in metadata.presences})
    rows: list[Leaf | Presence] = [*metadata.leaves, *metadata.presences]
    for row in rows:
        assert row.name
        assert len(row.name) <= CAPS.key_characters
        assert storable(row.name)
        assert all(type(flag) is str and flag for flag in row.flags)
    for leaf in metadata.leaves:
        if leaf.family == "number":
            assert isinstance(leaf.value, Decimal)
            assert leaf.value.is_finite()
        elif leaf.family == "string":
            assert isinstance(leaf.value, str)
            assert storable(leaf.value)
        elif leaf.family == "bool":
            assert type(leaf.value) is bool
        else:
            assert isinstance(leaf.value, datetime)
            assert leaf.value.utcoffset() == timedelta(0)
    assert storable(metadata.problem or "")
    assert decode_entries(encode_entries(metadata.entries)) == metadata.entries


@given(st.binary(max_size=300))
def test_any_bytes(blob: bytes) -> None:
    _is_fit_for_postgres(read_metadata(blob, response=blob))


@given(_DOCUMENT)
def test_any_document(document: Any) -> None:
    _is_fit_for_postgres(read_metadata(json.dumps(document).encode()))


@given(_DOCUMENT, _VALUE)
def test_any_response(metadata: Any, parameters: Any) -> None:
    document = {"outputs": [{"data": [], "parameters": {"metadata": metadata, "x": parameters}}]}
    response = json.dumps(document).encode()
    _is_fit_for_postgres(read_metadata(None, response=response))


@given(_LIST, st.data())
def test_any_damage(document: Any, data: st.DataObject) -> None:
    blob = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(blob) - 1))
        blob[position] = data.draw(st.integers(0, 255))
    _is_fit_for_postgres(read_metadata(bytes(blob[: data.draw(st.integers(0, len(blob)))])))


@given(st.lists(_ITEM, max_size=5))
def test_every_key_that_was_sent_is_there(items: list[dict[str, Any]]) -> None:
    """Leaf or presence, for every key that can be a name."""
    metadata = read_metadata(json.dumps(items).encode())
    names = {leaf.name for leaf in metadata.leaves} | {
        presence.name for presence in metadata.presences
    }
    for key in {item["key"] for item in items}:
        if key and storable(key):
            assert {"dataset_split": "dataset_snapshot_split"}.get(key, key) in names
