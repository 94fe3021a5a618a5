"""The reference system's conditions, as trees: their meaning, their errors and their paths."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from inference_store.index.key_registry import KeySeen, TypeSeen
from inference_store.inference.errors import (
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.inference.json_text import read_exactly, write_json
from inference_store.query.cql2 import parse_json, parse_text, to_json, to_text
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import (
    MetadataEntry,
    metadata_node,
    one_of,
    predicted,
    succeeded,
)
from inference_store.query.filters.names import KnownKeys, known_key
from inference_store.query.properties import OPERATORS
from tests.unit.query.filters.evaluation import KNOWN, make_facts
from tests.unit.query.filters.oracle import evaluate
from tests.unit.query.operator_meanings import holds


def _make_entry(
    key: str, operator: str, value: Any = None, type_: str | None = None
) -> MetadataEntry:
    return MetadataEntry("metadata_filter[0]", key, type_, OPERATORS[operator], value)


def test_the_operators_as_trees() -> None:
    cases: list[tuple[MetadataEntry, str]] = [
        (_make_entry("frame_number", "eq", "9000"), '"metadata.frame_number" = 9000'),
        (_make_entry("frame_number", "neq", Decimal("0.1")), '"metadata.frame_number" <> 0.1'),
        (_make_entry("frame_number", "gt", 1), '"metadata.frame_number" > 1'),
        (_make_entry("frame_number", "gte", 1), '"metadata.frame_number" >= 1'),
        (_make_entry("frame_number", "lt", 1), '"metadata.frame_number" < 1'),
        (_make_entry("frame_number", "lte", 1), '"metadata.frame_number" <= 1'),
        (_make_entry("data_source", "in", ["a", "b"]), "\"metadata.data_source\" IN ('a', 'b')"),
        (_make_entry("day", "not_in", [True]), '"metadata.day" NOT IN (TRUE)'),
        (
            _make_entry("frame_number", "between", ["1", "2"]),
            '"metadata.frame_number" BETWEEN 1 AND 2',
        ),
        (_make_entry("data_source", "like", "a%"), "\"metadata.data_source\" LIKE 'a%'"),
        (_make_entry("frame_number", "exists"), 'sent("metadata.frame_number")'),
        (_make_entry("frame_number", "missing"), 'NOT sent("metadata.frame_number")'),
        (
            _make_entry("seen", "gt", "2026-11-01"),
            "\"metadata.seen\" > TIMESTAMP('2026-11-01T00:00:00Z')",
        ),
        (_make_entry("frame_number", "eq", "1e3"), '"metadata.frame_number" = 1000'),
        (_make_entry("frame_number", "eq", "1000.00"), '"metadata.frame_number" = 1000'),
        (_make_entry("frame_number", "eq", "9" * 1000), f'"metadata.frame_number" = {"9" * 1000}'),
        (_make_entry("frame_number", "eq", "1e400"), '"metadata.frame_number" = 1e400'),
        (_make_entry("frame_number", "eq", "1e-400"), '"metadata.frame_number" = 1e-400'),
        (_make_entry("width", "eq", 3), '"metadata.width" = 3'),
        (_make_entry("speed", "eq", "3"), "\"metadata.speed\" = '3'"),
        (_make_entry("speed", "eq", "3", "int"), '"metadata.speed" = 3'),
    ]
    for entry, text in cases:
        node = metadata_node(entry, KNOWN)
        assert node == parse_text(text), entry
        # Each compiles to CQL2-JSON.
        assert parse_json(read_exactly(write_json(to_json(node)))) == node, entry


def test_the_operators_mean_what_they_meant() -> None:
    operands: dict[str, Any] = {
        **{"in": [2], "not_in": [2], "between": [2, 2], "like": "2"},
        **{"exists": None, "missing": None},
    }
    values: list[Any] = [1, 2, 3, None]
    for name, operator in OPERATORS.items():
        key, operand = "frame_number", operands.get(name, 2)
        sent = [{}, *({key: value} for value in values)]
        if name == "like":
            key = "data_source"
            sent = [{}, {key: ("string", "2")}, {key: ("string", "5")}]
        predicate = check(metadata_node(_make_entry(key, name, operand), KNOWN), KNOWN).predicate
        for metadata in sent:
            facts = make_facts(metadata)
            rows: list[Any] = [leaf.value for leaf in facts.metadata.leaves]
            if name in ("exists", "missing"):
                rows += [None for _ in facts.metadata.presences]
            expected = holds(operator, rows, operand)
            assert (evaluate(predicate, facts) is True) is expected, (name, metadata)


def test_errors_and_their_paths(subtests: pytest.Subtests) -> None:
    cases: list[tuple[MetadataEntry, type[Invalid], str]] = [
        (_make_entry("frame_no", "eq", 1), UnknownKey, "key"),
        (_make_entry("frame_number", "eq", "abc"), ImpossibleComparison, "value"),
        (_make_entry("frame_number", "eq", "1", "string"), ImpossibleComparison, "value"),
        (_make_entry("frame_number", "eq", "1", "strin"), Invalid, "type"),
        (_make_entry("frame_number", "like", 1), ImpossibleComparison, "operator"),
        (_make_entry("day", "gt", True), ImpossibleComparison, "operator"),
        (_make_entry("frame_number", "eq", [1]), Invalid, "value"),
        (_make_entry("frame_number", "in", 1), Invalid, "value"),
        (_make_entry("frame_number", "in", []), Invalid, "value"),
        (_make_entry("frame_number", "between", [1]), Invalid, "value"),
        (_make_entry("frame_number", "eq", {"a": 1}), Invalid, "value"),
        (_make_entry("frame_number", "eq", Decimal("NaN")), ImpossibleComparison, "value"),
        (_make_entry("data_source", "eq", "a\0"), Invalid, "value"),
        (_make_entry("data_source", "like", "a\\"), InvalidFilter, "value"),
        (_make_entry("frame_number", "exists", 1), Invalid, "value"),
        (_make_entry("frame_number", "eq"), Invalid, "value"),
        # one digit more than a stored number has, and one more of the exponent
        (_make_entry("frame_number", "eq", "9" * 1001), ImpossibleComparison, "value"),
        (_make_entry("frame_number", "eq", "1e401"), ImpossibleComparison, "value"),
        (_make_entry("frame_number", "eq", "1e-401"), ImpossibleComparison, "value"),
    ]
    for entry, error, path in cases:
        with subtests.test(str(entry)):
            with pytest.raises(error) as caught:
                check(metadata_node(entry, KNOWN), KNOWN)
            assert type(caught.value) is error
            assert [fault.path for fault in caught.value.faults] == [f"metadata_filter[0].{path}"]


def test_an_unknown_key_names_the_nearest() -> None:
    for key, said, known in [
        ("frame_no", "'frame_no'; the nearest is frame_number.", ("frame_number",)),
        ("frame_numb", "'frame_numb'; no other name is spelled like it.", ()),
        ("label", "probably meant: prediction(label …)", ("prediction(label …)",)),
        ("prediction.score", "meant: prediction(score …)", ("prediction(score …)",)),
    ]:
        with pytest.raises(UnknownKey) as caught:
            check(metadata_node(_make_entry(key, "eq", 1), KNOWN), KNOWN)
        assert said in caught.value.detail, key
        assert caught.value.faults[0].known == known, key


def test_a_long_value_is_shown_as_far_as_it_is_read() -> None:
    for value, shown in [("x" * 78, f"with '{'x' * 78}'"), ("x" * 79, f"with '{'x' * 79}…")]:
        with pytest.raises(ImpossibleComparison) as caught:
            metadata_node(_make_entry("frame_number", "eq", value), KNOWN)
        assert shown in caught.value.detail, len(value)
        assert ("…" in caught.value.detail) == ("…" in shown), len(value)


def test_unknown_keys_can_be_empty() -> None:
    for operator, matches in [("missing", True), ("eq", False)]:
        value = None if operator == "missing" else 1
        node = metadata_node(_make_entry("frame_no", operator, value), KNOWN)
        predicate = check(node, KNOWN, unknown_keys="empty").predicate
        assert (evaluate(predicate, make_facts()) is True) is matches, operator


def test_the_other_conditions() -> None:
    example = make_facts(
        inference_ids=("1", "alias"),
        ok=True,
        predictions=({"label": "cat", "score": 0.1}, {"label": "dog", "score": 0.9}),
    )
    for node, expected in (
        (one_of("inference_ids", ["x", "alias"], "inference_ids"), True),
        (one_of("data_hash", ["0" * 64], "data_hash"), None),
        (succeeded(True), True),
        (succeeded(False), False),
        (predicted(None, {}), True),
        (predicted(["cat", "cow"], {}), True),
        (predicted(["cat"], {"gte": 0.1, "lt": 0.2}), True),
        (predicted(["cat"], {"gt": 0.1}), False),
        (predicted(None, {"eq": 0.9}), True),
    ):
        assert evaluate(check(node, KNOWN).predicate, example) is expected


_NOW = datetime(2026, 11, 1, tzinfo=UTC)


def _make_known_keys(*types: tuple[str, str]) -> KnownKeys:
    types_seen = tuple(TypeSeen(name, flag, 1, _NOW, _NOW, ()) for name, flag in types)
    return KnownKeys({"k": known_key(KeySeen(1, "k", types_seen))})


def test_stray_texts_make_no_text_of_a_value() -> None:
    stamps = [("timestamp", ""), ("timestamp", "not_timestamp")]
    cases: list[tuple[list[tuple[str, str]], str, Any, str]] = [
        ([("float", ""), ("float", "not_finite")], "eq", "1.5", "k = 1.5"),
        ([("float", ""), ("float", "not_finite")], "gt", "9000", "k > 9000"),
        ([("float", ""), ("float", "not_finite")], "eq", "NaN", "k = 'NaN'"),
        ([("float", ""), ("float", "not_finite")], "in", ["1", "NaN"], "k IN ('1', 'NaN')"),
        ([("int", ""), ("int", "not_int")], "between", ["1", "2"], "k BETWEEN 1 AND 2"),
        ([("int", ""), ("int", "not_int")], "like", "1", "k LIKE '1'"),
        ([("bool", ""), ("bool", "not_bool")], "eq", "1", "k = TRUE"),
        ([("bool", ""), ("bool", "not_bool")], "gt", "1", "k > '1'"),
        ([("int", ""), ("string", ""), ("int", "not_int")], "eq", "1", "k = '1'"),
        ([("int", "from_text"), ("string", "")], "eq", "1", "k = '1'"),
        ([("int", "not_int")], "eq", "1", "k = '1'"),
        (stamps, "lt", "2026-11-01", "k < TIMESTAMP('2026-11-01T00:00:00Z')"),
    ]
    for types, operator, value, text in cases:
        node = metadata_node(_make_entry("k", operator, value), _make_known_keys(*types))
        assert to_text(node).replace('"', "").replace("metadata.", "") == text, types
