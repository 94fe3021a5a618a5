"""Answers are dataclasses with exact values, and an expression is the filter of its text."""

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta
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
from inference_store.inference.json_text import read_exactly
from inference_store.inference.metadata import Entry
from inference_store.query.cql2 import parse_json, parse_text
from inference_store.query.cql2.operations import OPERATIONS
from inference_store.query.cql2.relative import Clock
from inference_store.query.cql2.tree import Interval, Listed, Named, Node, Operation
from inference_store_client import (
    FilterError,
    a_contained_by,
    a_overlaps,
    count_predictions,
    div,
    duration,
    field,
    filters,
    interval,
    meta,
    now,
    predicted,
    prediction,
)
from inference_store_client.decoding import decode
from inference_store_client.errors import NotIncluded, UnexpectedAnswer
from inference_store_client.filters import Expression, encode_filter
from inference_store_client.json_text import write_json
from inference_store_client.values import (
    answers,
    drift,
    exports,
    inference,
    models,
    overview,
    truth,
)
from inference_store_client.values.inference import InferenceFields, read_value
from tests.both_clients import make_item
from tests.client_examples import EXAMPLES, SENTENCES, list_texts

_FILE = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
SCHEMAS: dict[str, Any] = json.loads(_FILE.read_text())["components"]["schemas"]
# The dataclasses that have another name than their schema.
_NAMED = {
    "Fault": "ProblemError",
    "Page": "InferencePage",
    "InferenceFields": "InferenceDetail",
    "Grant": "OwnGrant",
    "CallerLimits": "OwnLimits",
    "SwitchedOn": "Features",
    "ExportFields": "Export",
    "Retention": "RetentionExplanation",
    "PendingDecision": "PendingRule",
    "Obstacle": "BlockedObject",
    "GroundTruth": "Truth",
}
KINDS: dict[str, type[Any]] = {
    _NAMED.get(name, name): kind
    for module in (answers, drift, exports, inference, models, overview, truth)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and is_dataclass(kind) and kind is not answers.Listing
    if kind.__module__ == module.__name__
}
KINDS["StreamedInference"] = InferenceFields
# What is for people, or for browsers.
LEFT_OUT = {
    "InferenceCount": {"explain"},
    "InferencePage": {"explain"},
    "Aggregate": {"explain"},
    "Erasure": {"decided_by", "given_up"},
    "Caller": {"session"},
    # What the client reads for itself has what it needs.
    "TruthSets": {"uid"},
    "Drawing": {"uid", "width", "height", "units", "without_shape"},
    "Shape": {"rank", "label", "score", "box", "oriented"},
    "Thumbnail": {"content_type", "width", "height", "problem"},
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


def test_a_dataclass_has_the_fields_and_defaults_of_the_openapi() -> None:
    for name, kind in KINDS.items():
        left_out, schema = LEFT_OUT.get(name, set()), SCHEMAS[name]
        described = {n: describe_schema(of) for n, of in schema["properties"].items()}
        described = {n: of for n, of in described.items() if n not in left_out}
        if kind is InferenceFields:  # one dataclass for an inference of a list, and for one by id
            described |= {"count": "integer|null", "cursor": "string|null"}
        hints = {n: describe_hint(hint) for n, hint in get_type_hints(kind).items()}
        assert hints == described, name
        assert kind.__dataclass_params__.frozen, name
    for name in KINDS.keys() - {"StreamedInference"}:
        kind, schema = KINDS[name], SCHEMAS[name]
        required = {field.name for field in fields(kind) if field.default is MISSING}
        by_id = {"count"} if kind is InferenceFields else set()
        expected = set(schema.get("required", ())) - LEFT_OUT.get(name, set()) - by_id
        assert required == expected, name


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


def test_a_newer_store_may_answer_more_and_what_was_not_asked_for_says_so() -> None:
    whole = make_item(1, some_new_field=5)
    assert decode(InferenceFields, whole).inference_id == "frame-1"
    for name, value in (("uid", "x"), ("revision", "1"), ("revision", True), ("flags", None)):
        with pytest.raises(UnexpectedAnswer):
            decode(InferenceFields, whole | {name: value})
    del whole["revision"]
    with pytest.raises(UnexpectedAnswer, match="revision is missing"):
        decode(InferenceFields, whole)
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


_CLOCK = Clock(datetime(2026, 11, 26, 12, tzinfo=UTC))


def read_expression(expression: Expression) -> Node:
    """Return the store's tree of an expression, as the request's body carries it."""
    body = write_json(encode_filter(expression))
    value = json.loads(body)
    assert value["filter_lang"] == "cql2-json"
    exact = read_exactly(body)
    assert isinstance(exact, dict)
    return parse_json(exact["filter"], clock=_CLOCK)


def strip_prefixes(node: Any) -> Any:
    """Return the tree with bare names: text may leave out which kind of name it means."""
    match node:
        case Named(name):
            return Named(name.removeprefix("metadata.").removeprefix("inference."))
        case Operation(args=args):
            return replace(node, args=tuple(map(strip_prefixes, args)))
        case Listed(items):
            return replace(node, items=tuple(map(strip_prefixes, items)))
        case Interval(start, end):
            return replace(node, start=strip_prefixes(start), end=strip_prefixes(end))
    return node


def test_every_filter_of_the_docs_is_an_expression_of_its_tree() -> None:
    texts = [*list_texts()]
    assert len(texts) > 40
    assert set(texts) == set(EXAMPLES)
    cases: list[str] = [*EXAMPLES, *SENTENCES]
    for spelt in cases:
        tree = read_expression({**EXAMPLES, **SENTENCES}[spelt])
        assert strip_prefixes(tree) == parse_text(spelt, clock=_CLOCK), spelt


def test_python_is_read_as_it_is_written() -> None:
    at = field.received_at
    cases: list[tuple[Expression, str]] = [
        (meta.n == _BIG, f'"metadata.n" = {_BIG}'),
        (meta.n == Decimal(f"{_BIG}.5"), f'"metadata.n" = {_BIG}.5'),
        (meta.n < 1e-7, '"metadata.n" < 0.0000001'),
        (meta.a == 'it\'s "x"\\', "\"metadata.a\" = 'it''s \"x\"\\\\'"),
        ((meta.a > 1) & (meta.b > 2) & (meta.c > 3), "a > 1 AND b > 2 AND c > 3"),
        ((meta.a > 1) | (meta.b > 2) | (meta.c > 3), "a > 1 OR b > 2 OR c > 3"),
        ((meta.a > 1) & ((meta.b > 2) | (meta.c > 3)), "a > 1 AND (b > 2 OR c > 3)"),
        (1 < meta.a, "a > 1"),  # noqa: SIM300
        (2 * meta.a + 1 == -meta.b, "2 * a + 1 = -b"),
        (10 - meta.a / 2 > 1 / meta.b, "10 - a / 2 > 1 / b"),
        (div(meta.a, 2) == meta.b**2, "a div 2 = b ^ 2"),
        (~meta.a.isin([1, meta.b]), "a NOT IN (1, b)"),
        (field.received_at < date(2026, 11, 1), "received_at < DATE('2026-11-01')"),
        (
            field.received_at < datetime(2026, 11, 1, 2, tzinfo=UTC) + timedelta(milliseconds=1),
            "received_at < TIMESTAMP('2026-11-01T02:00:00.001Z')",
        ),
        (at > now() - timedelta(seconds=1.5), "received_at > now() - duration('PT1.5S')"),
        (at > now() - duration(timedelta(days=1)), "received_at > now() - duration('P1D')"),
        (a_overlaps(meta["t[]"], ["a"]), "A_OVERLAPS(\"t[]\", ('a'))"),
        (a_contained_by(meta["t[]"], {"a"}), "A_CONTAINEDBY(\"t[]\", ('a'))"),
        (
            filters.t_after(meta.a, interval(None, date(2026, 11, 1))),
            "T_AFTER(a, INTERVAL('..', '2026-11-01'))",
        ),
        (prediction(), "prediction()"),
        (
            prediction(predicted.score < 0.4, predicted.xmin > predicted.ymin, label=["a", "b"]),
            "prediction(label IN ('a', 'b') AND score < 0.4 AND xmin > ymin)",
        ),
        (
            count_predictions((predicted.label == "a") | ~(predicted.rank == 1)) > 2,
            "count_predictions(label = 'a' OR NOT rank = 1) > 2",
        ),
        (field.width > meta.width, "inference.width > metadata.width"),
    ]
    for expression, text in cases:
        assert strip_prefixes(read_expression(expression)) == strip_prefixes(
            parse_text(text, clock=_CLOCK)
        ), expression


def test_names_functions_and_texts_are_those_of_the_store() -> None:
    assert meta.width.tree == meta["width"].tree == {"property": "metadata.width"}
    assert field.width.tree == {"property": "inference.width"}
    # But comparisons and the like, which are operators of Python, and what `function` calls.
    names = {name.replace("_", "").lower() for name in vars(filters)}
    called = {
        name
        for name, entry in OPERATIONS.items()
        if entry.tight is None and entry.is_supported and not (entry.own and entry.means)
    }
    assert filters.function("casei", meta.a).tree == filters.casei(meta.a).tree
    assert {name for name in called if name.replace("_", "").lower() not in names} == set()
    assert encode_filter("a > 1") == {"filter": "a > 1", "filter_lang": "cql2-text"}
    tree = {"op": "=", "args": [{"property": "a"}, 1]}
    assert encode_filter(tree) == {"filter": tree, "filter_lang": "cql2-json"}


def test_what_python_would_misread_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: (meta.a > 1) and (meta.b > 2), r"\(a\) & \(b\)"),
        (lambda: (meta.a > 1) or (meta.b > 2), r"\(a\) \| \(b\)"),
        (lambda: not meta.a, "~"),
        (lambda: 1 < meta.a < 5, "between"),
        (lambda: meta.a in [1, 2], "isin"),
        (lambda: 1 in meta.a, "isin"),
        (lambda: meta.a > 1 & meta.b < 2, "parentheses"),
        (lambda: (meta.a == "x") & "y", "parentheses"),  # type: ignore[operator]
        (lambda: meta.a == "x" & meta.b, "parentheses"),
        (lambda: (meta.a > 1) == True, "parentheses"),  # noqa: E712
        (lambda: (field.ok & meta.a) > 1, "parentheses"),
        (lambda: len(meta.a), "count"),
        (lambda: [*meta.a], "iterate"),
        (lambda: meta.a == None, "is_null"),  # noqa: E711
        (lambda: meta.a > math.inf, "not a number"),
        (lambda: meta.a == object(), "cannot hold"),
        (lambda: meta.a.isin("abc"), r"isin\(\['abc'\]\)"),
        (lambda: field.received_at > datetime(2026, 11, 1), "time zone"),  # noqa: DTZ001
        (lambda: now() - timedelta(-1), "negative"),
    ]
    for use, remedy in cases:
        with subtests.test(str(use)), pytest.raises(FilterError, match=remedy):
            use()
