"""Values that a name never has are refused by name; other spellings are those that are stored."""

import re
from typing import Any
from uuid import UUID

import pytest

from inference_store.inference.errors import ImpossibleComparison, Invalid
from inference_store.inference.task_types import TASK_TYPES
from inference_store.query.cql2 import parse_json, parse_text
from inference_store.query.filters.certain import resolve, save
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node, one_of
from inference_store.query.filters.names import KnownKey, KnownKeys
from inference_store.query.properties import OPERATORS
from tests.unit.query.filters.evaluation import (
    check_filter,
    evaluate_filter,
    find_refusal,
    make_facts,
)

_HASH = "0123456789abcdef" * 4
_UID = "019ac3f2-7c00-8123-9abc-0123456789ab"
_OFF = KnownKey("latitude", 1, {"number": 3}, ("float",), off_map=True)
_ON = {name: KnownKey(name, 1, {"number": 3}, ("float",)) for name in ("latitude", "longitude")}


def test_reads_other_spellings_as_the_stored_one() -> None:
    values: dict[str, Any] = {"data_hash": _HASH, "uid": _UID, "task_type": "object_detection"}
    for text in [
        f"data_hash = '{_HASH.upper()}'",
        f"'{_HASH.upper()}' = inference.data_hash",
        f"data_hash IN ('{_HASH.upper()}', '{'0' * 64}')",
        "data_hash BETWEEN '0' AND 'F'",
        "data_hash LIKE '%CDEF'",
        "data_hash < 'g' AND NOT data_hash > 'hmac-sha256:'",
        "data_hash < 'A'",
        f"NOT data_hash <> '{_HASH.upper()}'",
        f"uid = '{_UID.upper()}'",
        f"uid = '{UUID(_UID).hex}'",
        f"uid >= '{_UID.upper()}' AND uid < '019B'",
        "task_type = 'Object Detection'",
        "task_type IN ('object-detection', 'tabular')",
        "NOT task_type <> 'OBJECT_DETECTION'",
    ]:
        assert evaluate_filter(text, **values) is True, text
        unseen = check(parse_text(text), KnownKeys()).predicate
        assert evaluate(unseen, make_facts(**values)) is True, text


def test_rejects_values_that_match_nothing() -> None:
    for text, message in [
        (f"data_hash = '{_HASH[:63]}'", "64 hexadecimal digits"),
        (f"data_hash = '{_HASH[:63]}'", f"LIKE '{_HASH[:63]}%'"),
        (f"data_hash <> '{_HASH}0'", "64 hexadecimal digits"),
        (f"'{'g' * 64}' = data_hash", "64 hexadecimal digits"),
        (f"data_hash IN ('{_HASH}', 'hallway')", "'hallway'"),
        ("uid = 'xyz'", "'xyz' is no uid"),
        ("uid = 'xyz'", "inference_id"),
        ("inference.uid <> ''", "no uid"),
        ("uid IN ('frame-003')", "'frame-003' is no uid"),
        ("task_type = 'object_detectoin'", "the nearest are object_detection"),
        ("task_type <> 'segments of the whole'", "known are"),
        ("task_type IN ('tabular', 'detect')", "there is no task type 'detect'"),
        ("distance(location, POINT(52.5 113.4)) < 1", "may be swapped"),
        ("S_INTERSECTS(location, POINT(52.5 113.4))", "may be swapped"),
        ("distance(location, POINT(13.4 52.5)) < -5", "a distance is 0 metres or more"),
        ("distance(location, POINT(13.4 52.5)) < 0", "a distance is 0 metres or more"),
        ("distance(location, POINT(13.4 52.5)) = -5", "a distance is 0 metres or more"),
        ("NOT -5 >= distance(location, POINT(13.4 52.5))", "a distance is 0 metres or more"),
        ("distance(location, POINT(13.4 52.5)) BETWEEN -9 AND -5", "a distance is 0 metres"),
        ("-5 BETWEEN distance(location, POINT(13.4 52.5)) AND 9", "a distance is 0 metres"),
    ]:
        assert message in find_refusal(text, Invalid).detail, text


def test_degrees_that_no_place_has_are_refused() -> None:
    for text, message in [
        ("latitude = -122.4", "a latitude is from -90 to 90"),
        ("latitude = -122.4", "longitude and latitude may be swapped"),
        ("metadata.latitude <> 91", "a latitude"),
        ("latitude IN (1, 180)", "a latitude"),
        ("longitude = 180.5", "a longitude is from -180 to 180"),
        ("longitude = -180.01", "a longitude is from -180 to 180"),
        ("latitude BETWEEN -123 AND -122", "a latitude"),
        ("latitude > 100", "a latitude"),
    ]:
        detail = find_refusal(text, ImpossibleComparison, KnownKeys(_ON)).detail
        assert message in detail, text
        assert "line 1, column" in detail, text


def test_accepts_possible_degrees() -> None:
    for text in ("latitude > 90", "latitude = -90", "longitude BETWEEN 180 AND 180"):
        assert not check_filter(text, known_keys=KnownKeys(_ON)).warnings, text
    off_map = KnownKeys({"latitude": _OFF})
    result = check_filter("latitude = 91 OR latitude > 90", known_keys=off_map)
    assert evaluate(result.predicate, make_facts({"latitude": ("float", "91")})) is True


def test_lists_task_types_nearest_first() -> None:
    [fault] = find_refusal("task_type = 'object_detectoin'", ImpossibleComparison).faults
    near = ("object_detection", "oriented_object_detection", "keypoint_detection")
    assert fault.known == (*near, *(name for name in TASK_TYPES if name not in near))


def test_a_long_text_is_shown_as_far_as_it_is_read() -> None:
    text = f"data_hash = '{'x' * 10_000}'"
    assert len(find_refusal(text, ImpossibleComparison).detail) < 400


def test_gives_the_path_of_a_mistake_in_json() -> None:
    node = parse_json({"op": "=", "args": [{"property": "uid"}, "xyz"]})
    with pytest.raises(ImpossibleComparison, match="'xyz' is no uid") as caught:
        check(node, KnownKeys())
    assert caught.value.faults[0].path == "filter.args[1]"


def test_the_conditions_of_a_body_are_held_to_it() -> None:
    with pytest.raises(ImpossibleComparison, match="64") as caught:
        check(one_of("data_hash", ["x"], "data_hash"), KnownKeys())
    assert caught.value.faults[0].path == "data_hash"
    condition = MetadataEntry("metadata_filter[0]", "latitude", None, OPERATORS["eq"], "122")
    with pytest.raises(ImpossibleComparison, match="swapped") as caught:
        check(metadata_node(condition, KnownKeys(_ON)), KnownKeys(_ON))
    assert caught.value.faults[0].path == "metadata_filter[0].value"


def test_a_saved_filter_of_such_values_matches_nothing() -> None:
    for name, valid, wrong in [
        ("data_hash", _HASH, "x"),
        ("uid", _UID, "xyz"),
        ("task_type", "tabular", "x"),
    ]:
        assert find_refusal(f"{name} = '{wrong}'", ImpossibleComparison)
        saved = save(parse_text(f"{name} = '{valid}'"), KnownKeys()).text.replace(valid, wrong)
        assert evaluate(resolve(saved, {}), make_facts(None, **{name: valid})) is False, name


def test_texts_that_are_folded_or_names_are_left_alone() -> None:
    assert evaluate_filter("CASEI(data_hash) = CASEI('AB')", data_hash=_HASH) is False
    assert evaluate_filter("uid = inference_id", uid=_UID, inference_id=_UID) is True


def test_the_hash_of_a_redacted_input_is_one() -> None:
    redacted = f"hmac-sha256:{_HASH}"
    assert evaluate_filter(f"data_hash = '{redacted.upper()}'", data_hash=redacted) is True


def test_accepts_possible_distances() -> None:
    distance = "distance(location, POINT(13.4 52.5))"
    for condition in ["<= 0", "= 0", "> -5", ">= -5", "BETWEEN -5 AND 5", "< 1", "<> -5"]:
        assert not check_filter(f"{distance} {condition}").warnings, condition
        assert check_filter(f"20 > {distance} AND frame_number {condition}"), condition
    # it may be the upper bound of what is below nothing
    predicate = check_filter(f"-5 BETWEEN -10 AND {distance}").predicate
    assert evaluate(predicate, make_facts({"latitude": 52.5, "longitude": 13.4})) is True


def test_a_distance_that_was_saved_before_is_read_and_matches_nothing() -> None:
    saved = save(parse_text("distance(location, POINT(13.4 52.5)) < 77"), KnownKeys()).text
    predicate = resolve(saved.replace("77", "-77"), {})
    assert evaluate(predicate, make_facts({"latitude": 52.5, "longitude": 13.4})) is not True


def test_bounds_the_wrong_way_round_are_warned_of() -> None:
    for text in [
        "frame_number BETWEEN 9 AND 3",
        "NOT frame_number BETWEEN 9 AND 3",
        "data_source BETWEEN 'b' AND 'a'",
        "seen BETWEEN DATE('2026-11-02') AND DATE('2026-11-01')",
        "prediction(score BETWEEN 0.9 AND 0.3)",
    ]:
        [warning] = check_filter(text).warnings
        sentence = r"Nothing is BETWEEN '.*' AND '.*': the lower bound stands first\."
        assert re.fullmatch(sentence, warning), text


def test_bounds_that_are_right_or_not_known_are_not_warned_of() -> None:
    assert not check_filter("frame_number BETWEEN 3 AND 3").warnings
    assert not check_filter("3 BETWEEN frame_number AND camera_position.angle").warnings
