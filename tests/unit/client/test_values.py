"""The dataclasses are those of the OpenAPI, field by field."""

import json
from dataclasses import MISSING, fields
from datetime import datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from inference_store_client.decoding import decode
from inference_store_client.errors import NotIncluded, UnexpectedAnswer
from inference_store_client.values.answers import InferenceCount, Page, ResolvedTime, StreamEnd
from inference_store_client.values.caller import Caller, CallerLimits, Grant, SwitchedOn
from inference_store_client.values.drawings import (
    Drawing,
    Keypoint,
    OrientedBox,
    Shape,
    ShapeBox,
)
from inference_store_client.values.erasures import Erasure, Obstacle, Progress
from inference_store_client.values.exports import (
    Download,
    ErasedMember,
    ErasedMemberPage,
    ExportFields,
    ExportPart,
    ExportPartPage,
    Webhook,
)
from inference_store_client.values.inference import InferenceFields, Urls
from inference_store_client.values.metadata import Metadata, MetadataEntry
from inference_store_client.values.models import (
    KeyPage,
    MetadataKey,
    OutputMapping,
    PendingMove,
    Registration,
    RegistrationPage,
    SeenType,
)
from inference_store_client.values.predictions import Prediction, Predictions
from inference_store_client.values.problems import Fault, Problem
from inference_store_client.values.retention import DecidedBy, HeldBy, Limit, Retention
from inference_store_client.values.thumbnails import Thumbnail, ThumbnailPage
from tests.both_clients import make_item

_FILE = Path(__file__).parents[1] / "golden" / "files" / "openapi.json"
SCHEMAS: dict[str, Any] = json.loads(_FILE.read_text())["components"]["schemas"]
KINDS: dict[str, type[Any]] = {
    "Problem": Problem,
    "ProblemError": Fault,
    "OneInference": InferenceFields,
    "StreamedInference": InferenceFields,
    "ShownMetadata": MetadataEntry,
    "ShownPrediction": Prediction,
    "Urls": Urls,
    "InferenceCount": InferenceCount,
    "InferencePage": Page,
    "StreamEnd": StreamEnd,
    "ResolvedTime": ResolvedTime,
    "ShownRegistration": Registration,
    "RegistrationPage": RegistrationPage,
    "PendingMove": PendingMove,
    "OutputMapping": OutputMapping,
    "ShownMetadataKey": MetadataKey,
    "ShownType": SeenType,
    "KeyPage": KeyPage,
    "ShownKept": Retention,
    "DecidedBy": DecidedBy,
    "ShownLimit": Limit,
    "HeldBy": HeldBy,
    "ShownErasure": Erasure,
    "Progress": Progress,
    "Obstacle": Obstacle,
    "ShownCaller": Caller,
    "OwnGrant": Grant,
    "OwnLimits": CallerLimits,
    "SwitchedOn": SwitchedOn,
    "ShownExport": ExportFields,
    "ShownDownload": Download,
    "ShownWebhook": Webhook,
    "ShownPart": ExportPart,
    "ExportPartPage": ExportPartPage,
    "ShownErasedMember": ErasedMember,
    "ErasedMemberPage": ErasedMemberPage,
    "ShownThumbnail": Thumbnail,
    "ThumbnailPage": ThumbnailPage,
    "ShownDrawing": Drawing,
    "ShownShape": Shape,
    "ShownBox": ShapeBox,
    "TurnedBox": OrientedBox,
    "ShownKeypoint": Keypoint,
}
# What is for people, or for browsers.
LEFT_OUT = {
    "InferenceCount": {"explain"},
    "InferencePage": {"explain"},
    "ShownErasure": {"decided_by", "given_up"},
    "ShownCaller": {"session"},
}
# A part that can be left out is an object that says so.
_PARTS = {Metadata: "list[ShownMetadata]|{}|null", Predictions: "list[ShownPrediction]|null"}
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", UUID: "string:uuid"}
_NAMES |= {datetime: "string:date-time", NoneType: "null", Any: "any"}


def describe_hint(hint: Any) -> str:  # noqa: PLR0911
    """Return the type of a field in the words of `describe_schema`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PARTS:
        return _PARTS[hint]
    if hint in _NAMES:
        return _NAMES[hint]
    if origin in (Union, UnionType):
        return "|".join(map(describe_hint, inner))
    if origin is tuple:
        return f"list[{describe_hint(inner[0])}]"
    if origin is Literal:
        return "/".join(inner)
    if origin is not None:
        return "{}" if inner[1] is Any else f"{{{describe_hint(inner[1])}}}"
    if isinstance(hint, TypeVar):
        return "ShownInference|ChosenInference"
    return next(name for name, kind in KINDS.items() if kind is hint)


def describe_schema(schema: dict[str, Any]) -> str:
    """Return the type of a property of the OpenAPI."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        name = {"ChosenPrediction": "ShownPrediction", "ChosenUrls": "Urls"}.get(name, name)
        return "string" if "enum" in SCHEMAS[name] else name
    if "anyOf" in schema:
        return "|".join(map(describe_schema, schema["anyOf"]))
    if "enum" in schema:
        return "/".join(schema["enum"])
    if schema.get("type") == "array":
        [item] = {
            describe_schema(part) for part in schema.get("prefixItems", [schema.get("items")])
        }
        return f"list[{item}]"
    if schema.get("type") == "object":
        of = schema.get("additionalProperties")
        return f"{{{describe_schema(of)}}}" if isinstance(of, dict) else "{}"
    return ":".join(schema[part] for part in ("type", "format") if part in schema)


@pytest.mark.parametrize("name", KINDS)
def test_a_dataclass_has_the_fields_of_the_openapi(name: str) -> None:
    kind, schema = KINDS[name], SCHEMAS[name]
    described = {n: describe_schema(s) for n, s in schema["properties"].items()}
    described = {n: s for n, s in described.items() if n not in LEFT_OUT.get(name, ())}
    hints = {n: describe_hint(h) for n, h in get_type_hints(kind).items()}
    if kind is InferenceFields:  # one dataclass for an inference of a list, and for one by its id
        described |= {"count": "integer|null", "cursor": "string|null"}
    assert hints == described


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"StreamedInference"}))
def test_only_what_may_be_missing_has_a_default(name: str) -> None:
    kind, schema = KINDS[name], SCHEMAS[name]
    required = {field.name for field in fields(kind) if field.default is MISSING}
    by_id = {"count"} if kind is InferenceFields else set()
    assert required == set(schema.get("required", ())) - LEFT_OUT.get(name, set()) - by_id


def test_every_dataclass_is_frozen() -> None:
    for kind in KINDS.values():
        assert kind.__dataclass_params__.frozen


def test_a_newer_store_may_answer_more_and_none_may_answer_less() -> None:
    whole = make_item(1, some_new_field=5)
    assert decode(InferenceFields, whole).inference_id == "frame-1"
    for name, value in (("uid", "x"), ("revision", "1"), ("revision", True), ("flags", None)):
        with pytest.raises(UnexpectedAnswer):
            decode(InferenceFields, whole | {name: value})
    del whole["revision"]
    with pytest.raises(UnexpectedAnswer, match="revision is missing"):
        decode(InferenceFields, whole)


def test_what_was_not_asked_for_says_so() -> None:
    inference = decode(InferenceFields, make_item(1))
    with pytest.raises(NotIncluded, match=r"include=\['metadata'\]"):
        inference.metadata["n"]
    with pytest.raises(NotIncluded, match=r"include=\['predictions'\]"):
        len(inference.predictions)
    assert "not included" in repr(inference)
    assert len(decode(InferenceFields, make_item(1, metadata=[])).metadata) == 0
