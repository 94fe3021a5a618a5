"""An expression is the filter that its text is; what Python would misread is refused."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from inference_store.inference.json_text import read_exactly
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
from inference_store_client.filters import Expression, encode_filter
from inference_store_client.json_text import write_json
from tests.client_examples import EXAMPLES, SENTENCES, list_texts

_CLOCK = Clock(datetime(2026, 11, 26, 12, tzinfo=UTC))
_BIG = 123456789012345678901234567890


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


def test_every_filter_of_the_docs_is_an_expression() -> None:
    texts = [*list_texts()]
    assert len(texts) > 40
    assert set(texts) == set(EXAMPLES)


def test_an_expression_is_the_tree_of_its_text() -> None:
    cases: list[str] = [*EXAMPLES, *SENTENCES]
    for text in cases:
        tree = read_expression({**EXAMPLES, **SENTENCES}[text])
        assert strip_prefixes(tree) == parse_text(text, clock=_CLOCK), text


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


def test_a_name_says_whether_it_is_a_key_or_a_property() -> None:
    assert meta.width.tree == meta["width"].tree == {"property": "metadata.width"}
    assert field.width.tree == {"property": "inference.width"}


def test_every_operation_of_the_store_has_a_function() -> None:
    """But comparisons and the like, which are operators of Python."""
    names = {name.replace("_", "").lower() for name in vars(filters)}
    called = {
        name for name, entry in OPERATIONS.items() if entry.style == "call" and entry.is_supported
    }
    assert {name for name in called if name.replace("_", "").lower() not in names} == set()


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
        (lambda: meta.a > math.inf, "no number"),
        (lambda: meta.a == object(), "cannot hold"),
        (lambda: meta.a.isin("abc"), r"isin\(\['abc'\]\)"),
        (lambda: field.received_at > datetime(2026, 11, 1), "time zone"),  # noqa: DTZ001
        (lambda: now() - timedelta(-1), "negative"),
    ]
    for use, remedy in cases:
        with subtests.test(str(use)), pytest.raises(FilterError, match=remedy):
            use()


def test_text_and_json_are_taken_as_they_are() -> None:
    assert encode_filter("a > 1") == {"filter": "a > 1", "filter_lang": "cql2-text"}
    tree = {"op": "=", "args": [{"property": "a"}, 1]}
    assert encode_filter(tree) == {"filter": tree, "filter_lang": "cql2-json"}
