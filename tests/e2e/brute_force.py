"""What a question means, read from the blobs themselves: none of the product's code is in here."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any

_FAMILIES = {
    "int": "number",
    "float": "number",
    "string": "string",
    "bool": "bool",
    "timestamp": "timestamp",
}
_READ: Mapping[str, Callable[[Any], Any]] = {
    "number": lambda value: Decimal(str(value)),
    "string": str,
    "bool": lambda value: str(value).lower() in {"true", "1"},
    "timestamp": lambda value: datetime.fromisoformat(str(value)),
}


@dataclass
class Read:
    """One inference as its event and blobs say."""

    inference_id: str
    received_at: datetime
    ok: bool | None
    data_hash: str | None
    sent: set[str] = field(default_factory=set)
    # (name, family) → values
    values: dict[tuple[str, str], set[Any]] = field(default_factory=lambda: defaultdict(set))
    # (label, score) of every prediction; none is known of a failed request
    predictions: list[tuple[str | None, float | None]] = field(default_factory=list)


def read(event: bytes, blobs: Mapping[str, bytes]) -> Read:
    """Read an inference."""
    fields = json.loads(event)
    found = Read(
        inference_id=fields["inference_id"],
        received_at=datetime.fromisoformat(fields["request_received_at"]),
        ok=fields.get("ok"),
        data_hash=fields.get("data_hash"),
    )
    for entry in json.loads(blobs[fields["metadata_storage_key"]]):
        found.sent.add(entry["key"])
        for name, family, value in _leaves(entry):
            found.values[name, family].add(value)
    if found.ok is not False:
        output = json.loads(blobs[fields["inference_storage_key"]])["outputs"][0]
        elements = json.loads(output["data"][0])
        found.predictions = [(one.get("label"), one.get("score")) for one in elements]
    return found


def _leaves(entry: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    key, kind, value = entry["key"], entry["type"], entry["value"]
    if value is None:
        return
    if kind == "json":
        yield from _within(key, json.loads(value, parse_float=Decimal))
    else:
        family = _FAMILIES[kind]
        yield key, family, _READ[family](value)


def _within(path: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _within(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _within(f"{path}[]", inner)
    elif isinstance(value, bool):
        yield path, "bool", value
    elif isinstance(value, str):
        yield path, "string", value
        try:
            yield path, "number", Decimal(value)
        except InvalidOperation:
            return
    elif value is not None:
        yield path, "number", Decimal(value)


# What each operator means of the set of values that an inference has.
MEANINGS: Mapping[str, Callable[[set[Any], Any], bool]] = {
    "eq": lambda values, wanted: wanted in values,
    "neq": lambda values, wanted: any(value != wanted for value in values),
    "gt": lambda values, wanted: any(value > wanted for value in values),
    "gte": lambda values, wanted: any(value >= wanted for value in values),
    "lt": lambda values, wanted: any(value < wanted for value in values),
    "lte": lambda values, wanted: any(value <= wanted for value in values),
    "in": lambda values, wanted: any(value in wanted for value in values),
    "not_in": lambda values, wanted: bool(values) and not any(v in wanted for v in values),
    "between": lambda values, wanted: any(wanted[0] <= v <= wanted[1] for v in values),
    "like": lambda values, wanted: any(
        fnmatchcase(value, wanted.replace("%", "*").replace("_", "?")) for value in values
    ),
}


def matches(one: Read, body: Mapping[str, Any]) -> bool:
    """Whether an inference satisfies every condition of a question's body."""
    window = body.get("received_at", {})
    since, until = (_instant(window.get(name)) for name in ("from", "to"))
    hashes, ids = body.get("data_hash"), body.get("inference_ids")
    return (
        all(_compared(one, condition) for condition in body.get("metadata_filter", ()))
        and (since is None or one.received_at >= since)
        and (until is None or one.received_at < until)
        and (ids is None or one.inference_id in ids)
        and (hashes is None or one.data_hash in ([hashes] if isinstance(hashes, str) else hashes))
        and ("ok" not in body or one.ok is body["ok"])
        and ("prediction" not in body or _predicted(one, body["prediction"]))
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _compared(one: Read, condition: Mapping[str, Any]) -> bool:
    key, operator, value = condition["key"], condition["operator"], condition.get("value")
    if operator in {"exists", "missing"}:
        return (key in one.sent) is (operator == "exists")
    family = _FAMILIES[condition["type"]]
    convert = _READ[family]
    wanted = [convert(each) for each in value] if isinstance(value, list) else convert(value)
    return MEANINGS[operator](one.values.get((key, family), set()), wanted)


def _predicted(one: Read, wanted: Mapping[str, Any]) -> bool:
    label, bounds = wanted.get("label"), wanted.get("score", {})
    labels = [label] if isinstance(label, str) else label
    return any(
        (labels is None or has in labels)
        and all(
            score is not None and MEANINGS[name]({score}, bound) for name, bound in bounds.items()
        )
        for has, score in one.predictions
    )
