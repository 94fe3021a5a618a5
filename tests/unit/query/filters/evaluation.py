"""Filters as text, checked against keys that are said to be known, and evaluated."""

import json
from typing import Any, TypeVar

from inference_store.inference.errors import StoreError
from inference_store.inference.metadata import read_metadata
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.check import Checked, check
from inference_store.query.filters.names import KnownKey, KnownKeys, UnknownKeys
from inference_store.query.filters.typed import Kind
from tests.unit.query.filters.oracle import Facts, evaluate

Refusal = TypeVar("Refusal", bound=StoreError)
_KEYS: dict[str, dict[Kind, int]] = {
    "frame_number": {"number": 90},
    "data_source": {"string": 90},
    "camera-id": {"number": 3},
    "day": {"bool": 5},
    "seen": {"timestamp": 4},
    "until": {"timestamp": 4},
    "speed": {"number": 70, "string": 20},
    "tags": {},
    "tags[]": {"string": 9, "number": 2},
    "times[]": {"timestamp": 9},
    "sizes[]": {"number": 9},
    "camera_position": {},
    "camera_position.angle": {"number": 1},
    "width": {"number": 8},
    "dataset_snapshot_split": {"string": 8},
}


def _make_key(number: int, name: str, rows: dict[Kind, int]) -> KnownKey:
    names: dict[Kind, str] = {"number": "int", "bool": "bool", "timestamp": "timestamp"}
    types = tuple(sorted(names.get(kind, "string") for kind in rows)) or ("json",)
    others = {kind: sum(rows.values()) - rows[kind] for kind in rows}
    return KnownKey(name, number, rows, types, others)


KNOWN = KnownKeys(
    {name: _make_key(n, name, rows) for n, (name, rows) in enumerate(_KEYS.items(), 1)},
    {"frame_no": ("frame_number",)},
)


def check_filter(
    text: str, *, unknown_keys: UnknownKeys = "refuse", known_keys: KnownKeys = KNOWN
) -> Checked:
    """The filter with types. Raises what `check` does."""
    return check(parse_text(text), known_keys, source=text, unknown_keys=unknown_keys)


def find_refusal(text: str, error: type[Refusal], known_keys: KnownKeys = KNOWN) -> Refusal:
    """Return the error with which a filter is refused."""
    try:
        check_filter(text, known_keys=known_keys)
    except error as refusal:
        return refusal
    raise AssertionError(f"it is accepted: {text}")


def make_facts(metadata: dict[str, Any] | None = None, **properties_by_name: Any) -> Facts:
    """An inference. `metadata`: by key, JSON values; a (type, value) is taken as it is."""
    items = [_make_item(key, value) for key, value in (metadata or {}).items()]
    properties = {
        name: value if isinstance(value, tuple) else (value,)
        for name, value in properties_by_name.items()
        if name != "predictions"
    }
    read = read_metadata(json.dumps(items).encode())
    return Facts(properties, read, properties_by_name.get("predictions", ()))


def _make_item(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"key": key, "type": value[0], "value": value[1]}
    return {"key": key, "type": "json", "value": json.dumps(value)}


def evaluate_filter(
    text: str, metadata: dict[str, Any] | None = None, **properties_by_name: Any
) -> bool | None:
    """Return what the filter is for an inference: true, false, or None for NULL."""
    return evaluate(check_filter(text).predicate, make_facts(metadata, **properties_by_name))
