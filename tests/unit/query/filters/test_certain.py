"""Facts that are certain of an incomplete inference: nothing that it lacks deletes it."""

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import Phase, event, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from inference_store.inference.errors import ImpossibleComparison, Invalid, InvalidFilter
from inference_store.inference.json_text import read_exactly
from inference_store.inference.metadata import Metadata, read_metadata
from inference_store.query.conditions import compile_condition
from inference_store.query.conditions.combination import Names
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import (
    FLAGS,
    Doubts,
    SavedFilter,
    find_doubts,
    make_certain,
    resolve,
    save,
)
from inference_store.query.filters.check import check
from inference_store.query.filters.names import KnownKey, KnownKeys
from inference_store.query.filters.typed import Fixed, Kind, Predicate, Value, iterate_nodes
from tests.integration.query.typed_predicates import PredicateMaker
from tests.integration.query.typed_rows import KEYS
from tests.unit.query.filters.evaluation import KNOWN, check_filter, make_facts
from tests.unit.query.filters.oracle import Facts, doubts_of, evaluate

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


# Filters of policies and holds: saved resolved, the same whatever is seen later.


def _save(text: str, known_keys: KnownKeys = KNOWN, **declared: str) -> SavedFilter:
    return save(parse_text(text), known_keys, declared=declared, source=text)


_NUMBERS = {name: (key.key, False) for name, key in KNOWN.keys.items() if key.key is not None}


def test_loads_the_filter_that_was_checked() -> None:
    for text in [
        "frame_number > 98765432109876543210 AND NOT ok",
        "speed = 0.1 OR speed LIKE 'fa%' OR A_OVERLAPS(tags, ('a', 1))",
        "metadata.width = 3 AND inference.width = 3",
        "prediction(label = 'person' AND score < 0.4) AND count_predictions() >= 2",
        "T_DURING(INTERVAL(seen, '..'), INTERVAL('2026-11-01', '2026-11-02T00:00:00.000001Z'))",
        "S_WITHIN(location, BBOX(170, -20, -170, -10)) AND location IS NOT NULL",
        '"camera-id" IN (1, frame_number) AND sent(camera_position) AND sent(width)',
        "distance(location, POINT(13.4 52.5)) < 1000.5 AND CASEI(data_source) = CASEI('ß')",
        "dataset_split = 'train'",
        "(speed ^ 0.5 = 1) = ok AND S_INTERSECTS(location, location)",
    ]:
        assert resolve(_save(text).text, _NUMBERS) == check_filter(text).predicate, text


def test_loading_knows_what_was_known_then() -> None:
    saved = _save("speed = speed AND ok AND nobody > 3")
    # A metadata key `ok` and texts of `nobody` may be seen later: they change nothing.
    assert '"inference.ok"' in saved.text
    assert resolve(saved.text, _NUMBERS) == saved.checked.predicate


def test_a_key_not_yet_seen_is_accepted_with_a_warning_and_its_declared_type() -> None:
    saved = _save("nobody = 'x'", nobody="string")
    assert "'nobody'" in saved.checked.warnings[0]
    predicate = resolve(saved.text, {"nobody": (7, False)})
    assert evaluate(predicate, make_facts({"nobody": "x"})) is True
    assert evaluate(predicate, make_facts({"nobody": 3})) is None
    with pytest.raises(ImpossibleComparison, match="number"):
        _save("nobody = 'x'", nobody="int")


def test_a_type_not_yet_seen_of_a_key_can_be_declared() -> None:
    with pytest.raises(ImpossibleComparison):
        _save("frame_number = 'x'")
    assert _save("frame_number = 'x'", frame_number="string").checked.keys["frame_number"].kinds


def test_a_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        _save("nobody = 'x'", nobody="json")
    assert caught.value.faults[0].path == "types.nobody"
    assert "timestamp" in caught.value.faults[0].known


def test_an_ambiguous_name_is_refused_when_it_is_saved() -> None:
    with pytest.raises(InvalidFilter, match=r"inference\.width"):
        _save("width = 3")


def test_numbers_are_exact_and_the_text_is_json() -> None:
    text = _save("frame_number = 98765432109876543210.10").text
    assert "98765432109876543210.1" in text
    assert json.loads(text)["version"] == 1
    assert read_exactly(text)["keys"] == {"frame_number": {"number": "90"}}


def test_another_versions_filter_is_not_guessed() -> None:
    with pytest.raises(Invalid, match="another version"):
        resolve('{"version": 2, "filter": true, "keys": {}}', {})


# Each predicate and value has a meaning in Python and in SQL, and property tests draw it.

_DRAWN_NUMBERS = {name: number for number, name in enumerate(KEYS, start=1)}
# A predicate that is decided while it is checked is in no larger one.
_KINDS: set[type[Any]] = {*get_args(Predicate), *get_args(Value)} - {Fixed}
_UNHURRIED = settings(
    max_examples=10_000, deadline=None, phases=[Phase.generate], database=None, derandomize=True
)


@st.composite
def predicates(draw: Any) -> Predicate:
    return PredicateMaker(_DRAWN_NUMBERS, draw).predicate(2)


def test_each_is_drawn_and_has_both_meanings() -> None:
    seen: dict[type[Any], Predicate] = {}

    def has_seen_all(predicate: Predicate) -> bool:
        for node in iterate_nodes(predicate):
            seen.setdefault(type(node), predicate)
        return seen.keys() >= _KINDS

    with suppress(NoSuchExample):
        find(predicates(), has_seen_all, settings=_UNHURRIED)
    assert _KINDS - seen.keys() == set(), "property tests draw none of these"
    for kind, predicate in seen.items():
        evaluate(predicate, Facts())
        assert compile_condition(predicate, Names()), kind
