"""Every typed question agrees with a reading of the blobs that shares no code with the product.

1,000 events of four models, with three blobs each, pass through a real ingester and api.
"""

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.e2e.faults.traffic import wait_until_drained
from tests.producer import START, Capture, Producer, capture
from tests.servers.ports import free_port
from tests.service_process import Service

pytestmark = pytest.mark.timeout(1800)
EVENTS = 1_000
TASKS = {
    "detector": "Object Detection",
    "classifier": "Image Classification",
    "reviews": "Text Classification",
    "captions": "Image-Text-to-Text",
}
MODELS = tuple(TASKS)


def make_capture(number: int) -> Capture:
    """Make an inference: its number determines its model, metadata of every type and response."""
    model_id = MODELS[number % len(MODELS)]
    extras: dict[str, Any] = {
        "task_type": TASKS[model_id],
        "data_hash": hashlib.sha256(b"%d" % (number % 500)).hexdigest(),
    }
    if number % 5:
        extras["ok"] = bool(number % 7)
    return capture(
        number,
        model_id=model_id,
        received_at=START - timedelta(days=number % 4, milliseconds=-number),
        metadata=list(_make_metadata(number)),
        predictions=_make_predictions(model_id, number),
        extras=extras,
    )


def _make_metadata(number: int) -> Iterator[dict[str, Any]]:
    yield {"key": "frame_number", "type": "int", "value": str(number)}
    yield {"key": "data_source", "type": "string", "value": f"camera_{number % 13}"}
    yield {"key": "exposure", "type": "float", "value": f"{number % 97}.{number % 7}"}
    yield {"key": "night", "type": "bool", "value": "True" if number % 3 else "false"}
    taken_at = START - timedelta(minutes=number % 1000)
    yield {"key": "taken_at", "type": "timestamp", "value": taken_at.isoformat()}
    yield {
        "key": "camera_position",
        "type": "json",
        "value": f'{{"angle": "{number % 360}.5", "tilt": {number % 90}}}',
    }
    yield {"key": "seen", "type": "json", "value": f'{{"tags": ["a{number % 5}", "b", "b"]}}'}
    if number % 4 == 0 or number % 11 == 0:
        yield {"key": "operator_name", "type": "string", "value": "Zoë" if number % 2 else "ann"}
    for seen in range(number % 3):
        yield {"key": "person_id", "type": "string", "value": f"p-{(number + seen) % 5}"}
    if number % 17 < 2:
        yield {"key": "note", "type": "string", "value": None}


def _make_predictions(model_id: str, number: int) -> list[dict[str, Any]]:
    if model_id == "captions":
        return [{"prompt": "what is it?", "answer": f"number {number}"}]
    score = (number % 1000) / 1000
    labels = ("person", "car", f"thing-{number % 7}")[: 1 + number % 3]
    listed = [{"label": label, "score": score / (1 + n)} for n, label in enumerate(labels)]
    if model_id == "detector":
        box = {"xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22}
        listed = [box_of | box for box_of in listed]
    return listed


def compare(key: str, type: str, operator: str, value: Any = None) -> dict[str, Any]:
    condition = {"key": key, "type": type, "operator": operator, "value": value}
    return {"metadata_filter": [condition]}


_ORDERED = ("eq", "neq", "gt", "gte", "lt", "lte")
_HOUR_AGO = (START - timedelta(hours=3)).isoformat()
BODIES: tuple[dict[str, Any], ...] = (
    {},
    *(compare("frame_number", "int", name, "503") for name in _ORDERED),
    *(compare("exposure", "float", name, "42.5") for name in _ORDERED),
    *(compare("exposure", "int", name, "42") for name in ("gt", "eq")),
    *(compare("data_source", "string", name, "camera_5") for name in _ORDERED),
    *(compare("night", "bool", name, "true") for name in ("eq", "neq")),
    *(compare("taken_at", "timestamp", name, _HOUR_AGO) for name in _ORDERED),
    *(compare("camera_position.angle", "float", name, "10.5") for name in _ORDERED),
    compare("camera_position.angle", "string", "eq", "10.5"),
    *(compare("camera_position.tilt", "int", name, "45") for name in ("eq", "lt")),
    *(compare("seen.tags[]", "string", name, "a2") for name in _ORDERED),
    *(compare("seen.tags[]", "string", name, ["a1", "a2"]) for name in ("in", "not_in")),
    *(compare("person_id", "string", name, "p-2") for name in _ORDERED),
    compare("person_id", "string", "not_in", ["p-2", "p-3"]),
    *(compare("frame_number", "int", name, ["7", "8", "333"]) for name in ("in", "not_in")),
    *(compare("operator_name", "string", name, ["ann"]) for name in ("in", "not_in")),
    compare("frame_number", "int", "between", ["500", "999"]),
    compare("exposure", "float", "between", ["10", "11.5"]),
    compare("data_source", "string", "between", ["camera_1", "camera_2"]),
    compare("taken_at", "timestamp", "between", [_HOUR_AGO, START.isoformat()]),
    compare("data_source", "string", "like", "camera_1%"),
    compare("operator_name", "string", "like", "Z_ë"),
    *(
        {"metadata_filter": [{"key": key, "operator": name}]}
        for key in ("operator_name", "note", "frame_number", "camera_position")
        for name in ("exists", "missing")
    ),
    {
        "metadata_filter": [
            *compare("frame_number", "int", "gt", "300")["metadata_filter"],
            *compare("data_source", "string", "eq", "camera_3")["metadata_filter"],
            *compare("camera_position.angle", "float", "lt", "180")["metadata_filter"],
        ],
        "ok": True,
        "received_at": {"from": (START - timedelta(days=2, hours=1)).isoformat()},
    },
    {"ok": True},
    {"ok": False},
    {"data_hash": hashlib.sha256(b"44").hexdigest()},
    {"data_hash": [hashlib.sha256(b"%d" % n).hexdigest() for n in (1, 2, 3, 4)]},
    {"inference_ids": ["inference-5", "inference-8", "inference-602", "nobody"]},
    {"received_at": {"from": (START - timedelta(days=1, hours=1)).isoformat()}},
    {"received_at": {"to": (START - timedelta(days=2) + timedelta(seconds=5)).isoformat()}},
    *({"prediction": {"label": "person", "score": {name: 0.4}}} for name in ("lt", "gte")),
    {"prediction": {"label": ["car", "thing-3"], "score": {"gt": 0.1, "lte": 0.3}}},
    {"prediction": {"score": {"gt": 0.9}}},
    {
        "prediction": {"label": "car", "score": {"lt": 0.2}},
        **compare("night", "bool", "eq", "true"),
    },
)


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
    window = body.get("received_at", {})
    bounds = (window.get(name) for name in ("from", "to"))
    since, until = (bound and datetime.fromisoformat(bound) for bound in bounds)
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


@pytest.fixture
async def services(service_environment: Any, topic: Any, tmp_path: Path) -> AsyncIterator[Any]:
    """A producer, the URL of an api, and the environment of both processes."""
    name, port = topic(4), free_port()
    environment = service_environment(KAFKA_TOPIC=name, API_PORT=str(port))
    started = [Service("ingester", environment, tmp_path), Service("api", environment, tmp_path)]
    try:
        for service in started:
            await asyncio.to_thread(service.wait_ready)
        async with Producer(environment, name) as producer:
            yield producer, f"http://127.0.0.1:{port}/v1"
    finally:
        for service in started:
            service.stop()


async def ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(url, json=body) as answer:
        result = await answer.json()
        assert answer.status == 200, (body, result)
        return dict(result)


async def list_all_ids(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> list[str]:
    ids: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await ask(http, f"{url}/query", {**body, "limit": 100, **cursor})
        ids += [item["inference_id"] for item in page["items"]]
        if page["next"] is None:
            return ids
        cursor = {"cursor": page["next"]}


async def test_every_question_agrees_with_the_blobs(services: Any, engine: AsyncEngine) -> None:
    producer, url = services
    captures = [make_capture(number) for number in range(EVENTS)]
    await producer.put_all(captures)
    await producer.publish_all(item.event for item in captures)
    await wait_until_drained(engine, records=EVENTS, seconds=600)
    reads: dict[str, list[Read]] = {model_id: [] for model_id in MODELS}
    for item in sorted(captures, key=lambda item: item.received_at or START):
        reads[item.model_id].append(read(item.event, item.blobs))
    async with aiohttp.ClientSession() as http:
        for model_id in MODELS:
            await check_model(http, f"{url}/models/{model_id}/inferences", reads[model_id])


async def check_model(http: aiohttp.ClientSession, url: str, inferences: list[Read]) -> None:
    """Every question, both ways round, and counted. `inferences` are the oldest first."""
    for body in BODIES:
        # What no inference of a model has is refused, unless the question says otherwise.
        query = {"unknown_keys": "empty", **body}
        expected = [inference.inference_id for inference in inferences if matches(inference, body)]
        counted = await ask(http, f"{url}/count", query)
        assert counted["count"] == len(expected), (url, body)
        newest_first = await list_all_ids(http, url, query)
        assert newest_first == expected[::-1], (url, body)
    oldest_first = await list_all_ids(http, url, {"sort": "received_at"})
    assert oldest_first == [inference.inference_id for inference in inferences]
