"""Facts that are certain of an incomplete inference: nothing that it lacks deletes it."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from inference_store.inference.errors import InvalidFilter
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import (
    FLAGS,
    Doubts,
    doubts_of,
    find_doubts,
    make_certain,
)
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import Facts, evaluate
from inference_store.query.filters.names import KnownKey, KnownKeys
from inference_store.query.filters.typed import Kind, Predicate

_ROWS: dict[str, dict[Kind, int]] = {
    "n": {"number": 1},
    "s": {"string": 1},
    "flag": {"bool": 1},
    "tags[]": {"string": 1, "number": 1},
    "longitude": {"number": 1},
    "latitude": {"number": 1},
}
_KNOWN = KnownKeys({name: KnownKey(name, 1, rows, tuple(rows)) for name, rows in _ROWS.items()})
_ATOMS = [
    *("n > 0", "n <> 1", "n IS NULL", "n IN (1, 2)", "n BETWEEN 0 AND 1", "n + width > 2"),
    *("s LIKE 'a%'", "s = 'b'", "flag", "flag = FALSE", "\"tags[]\" = 'a'", '"tags[]" IS NULL'),
    *("sent(n)", "sent(s)", "A_CONTAINS(\"tags[]\", ('a', 'b'))", "(n > 0) IS NULL", "(flag) = ok"),
    *("A_CONTAINEDBY(\"tags[]\", ('a', 'b'))", "A_EQUALS(\"tags[]\", ('a'))", "\"tags[]\" <> 'a'"),
    *("A_OVERLAPS(\"tags[]\", ('a', 'c'))", "ok", "NOT ok", "ok IS NULL", "width > 1", "TRUE"),
    *("S_INTERSECTS(location, BBOX(-1, -1, 1, 1))", "location IS NULL", "CASEI(s) = CASEI('B')"),
    *("distance(location, POINT(1 1)) < 200000", "prediction(label = 'a')", "prediction_count = 1"),
    *("prediction(label <> 'a')", "prediction(label IS NULL)", "prediction(NOT (label = 'b'))"),
    *("count_predictions(label = 'a') = 0", "top_label = 'a'", "top_label IS NULL"),
    *("top_score < 0.3", "prediction(score > 0.4 AND label = 'b')"),
]
_FILTERS = st.recursive(
    st.sampled_from(_ATOMS),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("(NOT {})".format, inner),
        st.builds("({} IS NULL)".format, st.builds("({})".format, inner)),
    ),
    max_leaves=4,
)


def _parse_predicate(text: str) -> Predicate:
    return check(parse_text(text), _KNOWN, source=text).predicate


def _is_taken(text: str) -> bool:
    """Check whether it is accepted: too many nested IS NULL are refused."""
    try:
        _parse_predicate(text)
    except InvalidFilter:
        return False
    return True


def _make_facts(metadata: Metadata, predictions: Any, ok: bool | None) -> Facts:
    """Return facts as a row has them: the first prediction is the top."""
    first = predictions[0] if predictions else {"label": None, "score": None}
    values = {"top_label": first["label"], "top_score": first["score"], "ok": ok, "width": 2}
    values["prediction_count"] = None if predictions is None else len(predictions)
    properties = {name: (value,) for name, value in values.items() if value is not None}
    return Facts(properties, metadata, predictions)


@st.composite
def _whole(draw: st.DrawFn) -> Metadata:
    values: dict[str, tuple[str, st.SearchStrategy[str]]] = {
        "n": ("float", st.sampled_from(["-1", "0", "1", "2"])),
        "s": ("string", st.sampled_from(["a", "ab", "b", "B"])),
        "flag": ("bool", st.sampled_from(["true", "false"])),
        "tags": ("json", st.lists(st.sampled_from(["a", "b", "c", 1])).map(json.dumps)),
        "longitude": ("float", st.sampled_from(["0", "1", "5"])),
        "latitude": ("float", st.just("0.5")),
    }
    sent = draw(st.lists(st.sampled_from(sorted(values)), max_size=8))  # a key may come again
    items = [{"key": k, "type": values[k][0], "value": draw(values[k][1])} for k in sorted(sent)]
    return read_metadata(json.dumps(items).encode())


@st.composite
def _take_part(draw: st.DrawFn, whole: Metadata) -> Metadata:
    """Return a part of it that an index may have."""
    leaves = [leaf for leaf in whole.leaves if draw(st.booleans())]
    presences = [presence for presence in whole.presences if draw(st.booleans())]
    return replace(whole, leaves=tuple(leaves), presences=tuple(presences))


_PREDICTIONS = st.none() | st.lists(
    st.fixed_dictionaries(
        {"label": st.sampled_from(["a", "b", None]), "score": st.sampled_from([0.2, 0.5])}
    ),
    max_size=3,
)


@given(data=st.data(), text=_FILTERS.filter(_is_taken), whole=_whole(), predictions=_PREDICTIONS)
def test_nothing_that_the_index_lacks_ends_what_is_certain(
    data: st.DataObject, text: str, whole: Metadata, predictions: Any
) -> None:
    predicate, ok = _parse_predicate(text), data.draw(st.sampled_from([True, False, None]))
    doubts: Doubts = data.draw(st.sets(st.sampled_from(sorted(FLAGS))).map(frozenset))
    part = data.draw(_take_part(whole)) if "metadata" in doubts else whole
    indexed_predictions = predictions
    if predictions is not None and "predictions" in doubts:
        indexed_predictions = [
            item | {"label": data.draw(st.sampled_from([item["label"], None]))}
            for item in predictions[: data.draw(st.integers(0, len(predictions)))]
        ]
    indexed, real = _make_facts(part, indexed_predictions, ok), _make_facts(whole, predictions, ok)
    is_certain = evaluate(make_certain(predicate, doubts), indexed) is True
    event(f"certain: {is_certain}")
    if is_certain:
        assert evaluate(predicate, indexed) is True
        assert evaluate(predicate, real) is True
    if not doubts:
        assert is_certain == (evaluate(predicate, indexed) is True)


def test_finds_what_is_certain_of_doubtful_metadata() -> None:
    for text, sure in [
        ("n = 1", True),
        ("n <> 2", True),
        ("NOT (n = 2)", False),  # the key may have come twice
        ("\"tags[]\" = 'a'", True),
        ("\"tags[]\" <> 'b'", True),
        ("NOT (\"tags[]\" = 'b')", False),
        ("s IS NULL", False),
        ("NOT (s IS NULL)", False),
        ("NOT (n IS NULL)", True),
        ("NOT sent(s)", False),
        ("(s = 'a') IS NULL", False),
        ("s IS NULL OR n = 1", True),
        ("prediction_count = 0", True),
        ("A_CONTAINEDBY(\"tags[]\", ('a'))", False),
        ("NOT A_CONTAINEDBY(\"tags[]\", ('b'))", True),
        ("S_INTERSECTS(location, BBOX(-1, -1, 1, 1))", True),
        ("NOT S_INTERSECTS(location, BBOX(1, 1, 2, 2))", True),
    ]:
        items = [
            {"key": "n", "type": "int", "value": "1"},
            {"key": "tags", "type": "json", "value": '["a"]'},
            {"key": "longitude", "type": "float", "value": "0"},
            {"key": "latitude", "type": "float", "value": "0"},
        ]
        facts = _make_facts(read_metadata(json.dumps(items).encode()), [], True)
        certain = make_certain(
            _parse_predicate(text), doubts_of(["metadata_keys_capped", "not_utf8"])
        )
        assert (evaluate(certain, facts) is True) == sure, text


def test_leaves_predicates_without_doubt_unchanged() -> None:
    predicate = _parse_predicate("ok AND NOT (width > 3)")
    assert make_certain(predicate, frozenset(FLAGS)) is predicate
    assert find_doubts(_parse_predicate("n > 0 AND prediction(label = 'a')")) == frozenset(FLAGS)
    assert make_certain(_parse_predicate("n > 0"), frozenset({"predictions"})) == _parse_predicate(
        "n > 0"
    )
