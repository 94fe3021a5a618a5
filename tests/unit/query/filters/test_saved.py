"""Filters of policies and holds: saved resolved, the same whatever is seen later."""

import json

import pytest

from inference_store.inference.errors import ImpossibleComparison, Invalid, InvalidFilter
from inference_store.inference.json_text import read_exactly
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import SavedFilter, deletes, protects, resolve, save
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.names import KnownKeys
from tests.unit.query.filters.evaluation import KNOWN, check_filter, make_facts


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
        "A_EQUALS(tags, (frame_number, 'a')) AND A_CONTAINS(tags, \"sizes[]\") IS NOT NULL",
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


def test_null_in_a_hold_protects_and_null_in_a_rule_does_not_delete() -> None:
    assert [protects(predicate) for predicate in (True, None, False)] == [True, True, False]
    assert [deletes(predicate) for predicate in (True, None, False)] == [True, False, False]
