"""The meaning of a question, read from the blobs themselves, without any of the product's code."""

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
    result = Read(
        inference_id=fields["inference_id"],
        received_at=datetime.fromisoformat(fields["request_received_at"]),
        ok=fields.get("ok"),
        data_hash=fields.get("data_hash"),
    )
    for entry in json.loads(blobs[fields["metadata_storage_key"]]):
        result.sent.add(entry["key"])
        for name, family, value in _list_leaves(entry):
            result.values[name, family].add(value)
    if result.ok is not False:
        output = json.loads(blobs[fields["inference_storage_key"]])["outputs"][0]
        elements = json.loads(output["data"][0])
        result.predictions = [(element.get("label"), element.get("score")) for element in elements]
    return result


def _list_leaves(entry: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    key, kind, value = entry["key"], entry["type"], entry["value"]
    if value is None:
        return
    if kind == "json":
        yield from _list_inner_leaves(key, json.loads(value, parse_float=Decimal))
    else:
        family = _FAMILIES[kind]
        yield key, family, _READ[family](value)


def _list_inner_leaves(path: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _list_inner_leaves(f"{path}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _list_inner_leaves(f"{path}[]", inner)
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
    "eq": lambda values, operand: operand in values,
    "neq": lambda values, operand: any(value != operand for value in values),
    "gt": lambda values, operand: any(value > operand for value in values),
    "gte": lambda values, operand: any(value >= operand for value in values),
    "lt": lambda values, operand: any(value < operand for value in values),
    "lte": lambda values, operand: any(value <= operand for value in values),
    "in": lambda values, operand: any(value in operand for value in values),
    "not_in": lambda values, operand: bool(values) and not any(v in operand for v in values),
    "between": lambda values, operand: any(operand[0] <= v <= operand[1] for v in values),
    "like": lambda values, operand: any(
        fnmatchcase(value, operand.replace("%", "*").replace("_", "?")) for value in values
    ),
}


def matches(inference: Read, body: Mapping[str, Any]) -> bool:
    """Check whether an inference satisfies every condition of a question's body."""
    window = body.get("received_at", {})
    since, until = (_parse_instant(window.get(name)) for name in ("from", "to"))
    hashes, ids = body.get("data_hash"), body.get("inference_ids")
    return (
        all(
            _is_true_of_metadata(inference, condition)
            for condition in body.get("metadata_filter", ())
        )
        and (since is None or inference.received_at >= since)
        and (until is None or inference.received_at < until)
        and (ids is None or inference.inference_id in ids)
        and (
            hashes is None
            or inference.data_hash in ([hashes] if isinstance(hashes, str) else hashes)
        )
        and ("ok" not in body or inference.ok is body["ok"])
        and ("prediction" not in body or _is_true_of_predictions(inference, body["prediction"]))
    )


def _parse_instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _is_true_of_metadata(inference: Read, condition: Mapping[str, Any]) -> bool:
    key, operator, value = condition["key"], condition["operator"], condition.get("value")
    if operator in {"exists", "missing"}:
        return (key in inference.sent) is (operator == "exists")
    family = _FAMILIES[condition["type"]]
    convert = _READ[family]
    operand = [convert(item) for item in value] if isinstance(value, list) else convert(value)
    return MEANINGS[operator](inference.values.get((key, family), set()), operand)


def _is_true_of_predictions(inference: Read, condition: Mapping[str, Any]) -> bool:
    label, bounds = condition.get("label"), condition.get("score", {})
    labels = [label] if isinstance(label, str) else label
    return any(
        (labels is None or has in labels)
        and all(
            score is not None and MEANINGS[name]({score}, bound) for name, bound in bounds.items()
        )
        for has, score in inference.predictions
    )
