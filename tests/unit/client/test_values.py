"""The dataclasses are those of the OpenAPI, field by field; values of metadata are exact, and the
same that the store answers as an object."""

import json
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.api.answer import encode_json
from inference_store.api.inference_models import convert_metadata
from inference_store.inference.metadata import Entry
from inference_store_client.decoding import decode
from inference_store_client.errors import NotIncluded, UnexpectedAnswer
from inference_store_client.values import answers, exports, inference, models
from inference_store_client.values.inference import InferenceFields, Urls, read_value
from tests.both_clients import make_item

_FILE = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
SCHEMAS: dict[str, Any] = json.loads(_FILE.read_text())["components"]["schemas"]
KINDS: dict[str, type[Any]] = {
    "Problem": answers.Problem,
    "ProblemError": answers.Fault,
    "InferenceDetail": InferenceFields,
    "StreamedInference": InferenceFields,
    "MetadataEntry": inference.MetadataEntry,
    "Prediction": inference.Prediction,
    "Urls": Urls,
    "InferenceCount": answers.InferenceCount,
    "InferencePage": answers.Page,
    "StreamEnd": answers.StreamEnd,
    "ResolvedTime": answers.ResolvedTime,
    "Registration": models.Registration,
    "PendingMove": models.PendingMove,
    "OutputMapping": models.OutputMapping,
    "MetadataKey": models.MetadataKey,
    "SeenType": models.SeenType,
    "Aggregate": answers.Aggregate,
    "Group": answers.Group,
    "OmittedGroups": answers.OmittedGroups,
    "RetentionExplanation": exports.Retention,
    "PendingRule": exports.PendingDecision,
    "DecidedBy": exports.DecidedBy,
    "Limit": exports.Limit,
    "HeldBy": exports.HeldBy,
    "Erasure": exports.Erasure,
    "Progress": exports.Progress,
    "BlockedObject": exports.Obstacle,
    "Caller": answers.Caller,
    "OwnGrant": answers.Grant,
    "OwnLimits": answers.CallerLimits,
    "Features": answers.SwitchedOn,
    "Export": exports.ExportFields,
    "Download": exports.Download,
    "ExportPart": exports.ExportPart,
    "ErasedMember": exports.ErasedMember,
    "Thumbnail": answers.Thumbnail,
    "ThumbnailPage": answers.ThumbnailPage,
    "Drawing": answers.Drawing,
    "Shape": answers.Shape,
    "Box": answers.ShapeBox,
    "RotatedBox": answers.OrientedBox,
    "Keypoint": answers.Keypoint,
}
# What is for people, or for browsers.
LEFT_OUT = {
    "InferenceCount": {"explain"},
    "InferencePage": {"explain"},
    "Aggregate": {"explain"},
    "Erasure": {"decided_by", "given_up"},
    "Caller": {"session"},
}
# A part that can be left out is an object that says so.
_HOLD = {"id": "019ac3f2-7c00-8123-9abc-000000000001", "name": "hold"}
_PARTS = {
    inference.Metadata: "list[MetadataEntry]|{}|null",
    inference.Predictions: "list[Prediction]|null",
}
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
        return "Inference|PartialInference"
    return next(name for name, kind in KINDS.items() if kind is hint)


def describe_schema(schema: dict[str, Any]) -> str:
    """Return the type of a property of the OpenAPI."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        name = {"PartialPrediction": "Prediction", "PartialUrls": "Urls"}.get(name, name)
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


def test_a_dataclass_has_the_fields_of_the_openapi() -> None:
    for name, kind in KINDS.items():
        left_out, schema = LEFT_OUT.get(name, set()), SCHEMAS[name]
        described = {n: describe_schema(of) for n, of in schema["properties"].items()}
        described = {n: of for n, of in described.items() if n not in left_out}
        if kind is InferenceFields:  # one dataclass for an inference of a list, and for one by id
            described |= {"count": "integer|null", "cursor": "string|null"}
        hints = {n: describe_hint(hint) for n, hint in get_type_hints(kind).items()}
        assert hints == described, name
        assert kind.__dataclass_params__.frozen, name


def test_a_list_has_items_and_a_cursor() -> None:
    lists = {
        "RegistrationPage": "Registration",
        "MetadataKeyPage": "MetadataKey",
        "ExportPartPage": "ExportPart",
        "ErasedMemberPage": "ErasedMember",
    }
    for name, item in lists.items():
        described = {n: describe_schema(of) for n, of in SCHEMAS[name]["properties"].items()}
        assert described.items() >= {"items": f"list[{item}]", "next": "string|null"}.items()
    decoded = decode(answers.Listing[exports.HeldBy], {"items": [{**_HOLD}], "next": None})
    assert decoded.items[0].id == UUID(_HOLD["id"])


def test_only_what_may_be_missing_has_a_default() -> None:
    for name in KINDS.keys() - {"StreamedInference"}:
        kind, schema = KINDS[name], SCHEMAS[name]
        required = {field.name for field in fields(kind) if field.default is MISSING}
        by_id = {"count"} if kind is InferenceFields else set()
        expected = set(schema.get("required", ())) - LEFT_OUT.get(name, set()) - by_id
        assert required == expected, name


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


_BIG = 123456789012345678901234567890
_OBJECT = {"a": Decimal("10.25"), "n": 98765432109876543210}


def make_metadata(*items: tuple[str, str, str | None]) -> inference.Metadata:
    entries = (
        inference.MetadataEntry(key=key, type=kind, value=value, section="extended", flags=())
        for key, kind, value in items
    )
    return inference.Metadata(tuple(entries))


def test_a_value_is_read_as_its_type() -> None:
    cases: list[tuple[str, str | None, Any]] = [
        ("int", "9001", 9001),
        ("integer", str(_BIG), _BIG),
        (" INT ", "-7", -7),
        ("int", "987.0", 987),
        ("int", "1e3", 1000),
        ("int", "9.5", "9.5"),
        ("int", "n/a", "n/a"),
        ("int", "1_000", "1_000"),
        ("int", "٣", "٣"),
        ("int", "1e401", "1e401"),
        ("int", "1e999999999", "1e999999999"),
        ("int", "9" * 1001, "9" * 1001),
        ("int", "9" * 1000, int("9" * 1000)),
        ("float", "0.1", Decimal("0.1")),
        ("double", f"{_BIG}.25", Decimal(f"{_BIG}.25")),
        ("number", "1.50", Decimal("1.50")),
        ("float", "NaN", "NaN"),
        ("float", "inf", "inf"),
        ("bool", "True", True),
        ("boolean", "0", False),
        ("bool", "yes", "yes"),
        ("timestamp", "2026-11-01T06:00:00+02:00", datetime(2026, 11, 1, 4, tzinfo=UTC)),
        ("datetime", "2026-11-01 06:00:00.1234567Z", datetime(2026, 11, 1, 6, 0, 0, 123456, UTC)),
        ("date", "2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        ("timestamp", "yesterday", "yesterday"),
        ("timestamp", "2026-11-01T24:00:00Z", "2026-11-01T24:00:00Z"),
        ("json", '{"a": 10.25, "n": 98765432109876543210}', _OBJECT),
        ("json", "{", "{"),
        ("json", "[NaN]", "[NaN]"),
        ("string", "12", "12"),
        ("", "12", 12),
        ("", "true", True),
        ("", "null", None),
        ("", '"quoted"', '"quoted"'),
        ("no-such-type", "text", "text"),
        ("int", None, None),
    ]
    for kind, text, value in cases:
        read = read_value(kind, text)
        assert (read, type(read)) == (value, type(value)), (kind, text)


_KINDS = st.sampled_from(["string", "int", "float", "bool", "json", "", "NUMBER", "other"])
_TEXTS = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.sampled_from(["true", "0", "null", '"a"', "[1, 2.50]", '{"a": {"b": -0.0}}', "1e5", ".5"]),
)


@given(_KINDS, _TEXTS)
def test_it_is_what_the_store_answers(kind: str, text: str) -> None:
    entry = Entry(key="k", type=kind, value=text, section="extended", flags=())
    answered = encode_json(convert_metadata([entry]))
    expected = json.loads(answered, parse_float=Decimal)["k"]
    assert read_value(kind, text) == expected


def test_metadata_is_a_mapping_and_keeps_every_entry() -> None:
    values = make_metadata(
        ("n", "string", "a"), ("t", "timestamp", "2026-11-01"), ("n", "int", "2")
    )
    assert dict(values) == {"n": 2, "t": datetime(2026, 11, 1, tzinfo=UTC)}
    assert values["t"] + timedelta(1) == datetime(2026, 11, 2, tzinfo=UTC)
    assert [entry.value for entry in values.entries] == ["a", "2026-11-01", "2"]
    assert "missing" not in values
    assert values.get("missing") is None
    assert values == make_metadata(*((e.key, e.type, e.value) for e in values.entries))
    assert values != make_metadata(("n", "int", "2"))
