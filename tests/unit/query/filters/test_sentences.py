"""Every sentence that is promised of the filter language's names, values and refusals."""

import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from inference_store.inference.errors import (
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.inference.task_types import TASK_TYPES
from inference_store.query.cql2 import parse_json, parse_text
from inference_store.query.filters.certain import resolve, save
from inference_store.query.filters.check import check
from inference_store.query.filters.from_conditions import MetadataEntry, metadata_node, one_of
from inference_store.query.filters.names import KnownKey, KnownKeys
from inference_store.query.filters.operands import without_accents
from inference_store.query.properties import OPERATORS, PREDICTION_COLUMNS, PROPERTIES
from tests.unit.query.filters.evaluation import (
    KNOWN,
    check_filter,
    evaluate_filter,
    find_refusal,
    make_facts,
)
from tests.unit.query.filters.oracle import evaluate


def test_the_own_properties_are_a_closed_list_bare_or_with_inference() -> None:
    for name in sorted(PROPERTIES.keys() - {"location", "width"}):
        assert check_filter(f"{name} IS NULL") == check_filter(f"inference.{name} IS NULL"), name


def test_a_property_that_is_not_there_is_refused_with_the_nearest() -> None:
    near = ("received_at", "responded_at", "indexed_at", "published_at", "forwarded_at")
    for name, known in [
        ("recieved_at", near),
        ("widht", ("width", "height")),
        ("zzzzzz", tuple(PROPERTIES)),  # no other name is spelled like it
    ]:
        refusal = find_refusal(f"inference.{name} IS NULL", InvalidFilter)
        assert refusal.faults[0].known == known, name
        assert ", ".join(known) in refusal.detail, name


def test_a_bare_name_that_is_both_offers_the_two() -> None:
    refusal = find_refusal("width > 3", InvalidFilter)
    assert refusal.faults[0].known == ("inference.width", "metadata.width")
    for text in ("metadata.width = 3 AND inference.width = 4", '"metadata.width" = 3'):
        assert evaluate_filter(text, {"width": 3}, width=4) is True, text
    assert evaluate_filter('"camera-id" = 3', {"camera-id": 3}) is True
    # `label` is that of predictions, here as in aggregates, also if a key has the name
    keys = KnownKeys({"label": KnownKey("label", 1, {"string": 1}, ("string",))})
    for known in (keys, KNOWN):
        refusal = find_refusal("label IS NULL", InvalidFilter, known)
        assert refusal.faults[0].known == ("prediction(label …)", "metadata.label")
    assert check_filter("metadata.label = 'a'", known_keys=keys)
    # of several models one with an odd key does not refuse the property
    checked = check_filter("width > 3", known_keys=replace(KNOWN, of_several=True))
    assert checked.predicate == check_filter("inference.width > 3").predicate
    assert "It is read as the property" in checked.warnings[0]


def test_a_hyphen_is_a_subtraction_and_the_error_suggests_the_quotes() -> None:
    known_keys = KnownKeys(KNOWN.keys, {"camera": (), "id": ()})
    refusal = find_refusal("camera-id = 3", UnknownKey, known_keys)
    assert refusal.faults[0].known == ('"camera-id"',)
    for text, error, meant in [
        ("camera-id = 3", UnknownKey, '"camera-id"'),
        ("a-camera-id = 3", UnknownKey, '"a-camera-id"'),
        ("camera-id = 'cam-3'", ImpossibleComparison, '"camera-id"'),
        # double quotes around a text
        ('data_source = "hallway"', UnknownKey, "'hallway'"),
    ]:
        detail = find_refusal(text, error, known_keys).detail
        assert detail.endswith(f"probably meant: {meant}"), text


def test_a_column_outside_is_answered_with_the_function() -> None:
    for text, column in [
        ("prediction.label = 'face'", "label"),
        ("predictions.score < 0.4", "score"),
        ("metadata.xmin BETWEEN 1 AND 2", "xmin"),
    ]:
        refusal = find_refusal(text, UnknownKey)
        assert f"probably meant: prediction({column} …)" in refusal.detail, text
        assert refusal.faults[0].known[0] == f"prediction({column} …)", text


def test_inside_prediction_names_are_columns_only() -> None:
    for name in ("frame_number", "received_at", "metadata.frame_number", "inference.ok"):
        refusal = find_refusal(f"prediction({name} IS NULL)", InvalidFilter)
        assert "columns of a prediction" in refusal.detail, name
        assert refusal.faults[0].known == tuple(PREDICTION_COLUMNS), name


def test_a_bare_boolean_is_a_condition() -> None:
    assert evaluate_filter("NOT ok", ok=False) is True
    assert "int" in find_refusal("frame_number AND ok", ImpossibleComparison).detail


def test_an_unknown_key_is_refused_with_the_nearest_names() -> None:
    [fault] = find_refusal("ok AND\n  frame_no > 9000", UnknownKey).faults
    assert "line 2, column 3" in fault.message
    assert fault.message.endswith("  frame_no > 9000\n    ^^^^^^^^")
    near = {"data_size_bytes": ("data_source",), "frame_no": ("frame_number",)}
    known_keys = KnownKeys(KNOWN.keys, near)
    # Of keys and properties the most similar first; where only a key can be, keys alone.
    for text, known in [
        ("frame_no > 1", ("frame_number", "trace_id", "forwarded_at")),
        ("metadata.frame_no > 1", ("frame_number",)),
        ("data_size_bytes > 10", ("data_size", "data_content_type", "data_source")),
        ("metadata.data_size_bytes > 10", ("data_source",)),
        ("sent(data_size_bytes)", ("data_source",)),
        ("to_label = 'x'", ("top_label", "truth_label")),
        ("sent(received_at)", ()),
    ]:
        refusal = find_refusal(text, UnknownKey, known_keys)
        assert refusal.faults[0].known == known, text
        hint = f"{', '.join(known)}." if known else "no other name is spelled like it."
        assert hint in refusal.detail, text


def test_an_impossible_comparison_is_refused_with_the_types_seen() -> None:
    [fault] = find_refusal("frame_number > 'abc'", ImpossibleComparison).faults
    assert fault.known == ("int",)
    assert "'frame_number' has been seen as int" in fault.message
    assert "line 1, column 16" in fault.message
    assert fault.message.endswith("^^^^^")


def test_names_the_remedy() -> None:
    for text, remedy in [
        ("frame_number > '9000'", "a number stands without quotes: 9000"),
        ("data_source = 3", "single quotes: '3'"),
        ("day = 'true'", "without quotes: TRUE"),
        ("camera_position = 3", "name a value inside it"),
        ("location = 3", "S_INTERSECTS"),
        ("data_source = seen", "'data_source' (a text) and 'seen' (an instant)"),
        ("data_source + 1 = 2", "'data_source' (a text)"),
        ("CASEI(frame_number) = 'x'", "'frame_number' (a number)"),
        ("frame_number LIKE '9%'", "'frame_number' (a number)"),
        ("day < TRUE", "no order"),
        ("day BETWEEN day AND day", "no order"),
    ]:
        assert remedy in find_refusal(text, Invalid).detail, text


def test_unknown_keys_can_be_empty() -> None:
    empty = check_filter("nobody = 'x' OR ok", unknown_keys="empty")
    assert not empty.warnings
    assert evaluate(empty.predicate, make_facts(ok=False)) is None
    assert evaluate(empty.predicate, make_facts(ok=True)) is True
    for text, expected in (("nobody IS NULL", True), ("sent(nobody)", False)):
        predicate = check_filter(text, unknown_keys="empty").predicate
        assert evaluate(predicate, make_facts()) is expected, text


def test_a_key_of_several_types_compares_with_the_comparable_and_warns() -> None:
    result = check_filter("speed > 30 AND data_source = 'x'")
    [warning] = result.warnings
    assert "'speed'" in warning
    assert "20 values" in warning
    assert evaluate(result.predicate, make_facts({"speed": "fast", "data_source": "x"})) is None
    # Of two names the kind that most rows have.
    assert "number" in check_filter("speed = speed").warnings[0]
    # Values of other types are told of if they could be meant.
    for text, told in [
        ("speed = 'fast'", False),
        ("speed IN ('fast', 'slow')", False),
        ("speed = '30'", True),
        ("speed <> 'fast'", True),
        ("NOT speed = 'fast'", True),
        ("(speed = 'fast') IS NULL", True),
        ("ok = (speed = 'fast')", True),
        ("speed > 'fast'", True),
    ]:
        assert ["70 values" in w for w in check_filter(text).warnings] == [True] * told, text
    stray = KnownKey("n", 1, {"number": 9, "string": 1}, ("int",), {"number": 1}, False, True)
    for text, told in [("n > 3", False), ("NOT n > 3", True)]:
        checked = check_filter(text, known_keys=KnownKeys({"n": stray}))
        assert len(checked.warnings) == told, text


def test_a_star_in_a_pattern_is_told_of() -> None:
    rows = [("LIKE '*a*'", True), ("LIKE 'a*%'", False), ("LIKE '\\\\*a'", False), ("= '*'", False)]
    for text, told in rows:
        warnings = check_filter(f"data_source {text}").warnings
        assert [w.startswith("LIKE '*a*' searches for the sign *") for w in warnings] == [1] * told
    [alone] = check_filter("data_source = CASEI('Zoe')").warnings
    assert alone.startswith("CASEI folds the text beside it alone")
    assert not check_filter("CASEI(data_source) = CASEI('Zoe')").warnings


def test_an_alias_of_a_reserved_key_is_that_key() -> None:
    assert evaluate_filter("dataset_split = 'train'", {"dataset_snapshot_split": "train"}) is True


def test_text_that_nothing_can_hold_is_refused() -> None:
    assert "NUL" in find_refusal("data_source = 'a\0b'", Invalid).detail


def test_gives_the_path_if_there_is_no_text() -> None:
    with pytest.raises(UnknownKey) as caught:
        check(parse_text("frame_no = 1"), KNOWN)
    assert caught.value.faults[0].path == "filter"
    assert caught.value.detail.startswith("filter: ")


def test_case_is_folded_in_full() -> None:
    for pair in ("STRASSE Straße", "ΣΊΣΥΦΟΣ σίσυφος", "ﬁn FIN", "İ i̇", "ǅ ǆ"):
        first, second = pair.split()
        assert first != second
        assert str.casefold(first) == str.casefold(second), pair
        assert str.casefold(str.casefold(first)) == str.casefold(first), pair


def test_accents_are_removed() -> None:
    for text, plain in [
        ("Chișinău", "Chisinau"),
        ("Ä\u0301é", "Ae"),
        ("Ø", "Ø"),  # a letter of its own, not a mark on one
        ("が", "か"),
        ("한", "한"),
        ("plain", "plain"),
        ("\u0301", ""),
    ]:
        assert without_accents(text) == plain, text


# Values that a name never has are refused by name; other spellings are those that are stored.

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
        ("uid = 'xyz'", "'xyz' is not a uid"),
        ("uid = 'xyz'", "inference_id"),
        ("inference.uid <> ''", "not a uid"),
        ("uid IN ('frame-003')", "'frame-003' is not a uid"),
        ("task_type = 'object_detectoin'", "the nearest are object_detection"),
        ("task_type <> 'segments of the whole'", "known are"),
        ("task_type IN ('tabular', 'detect')", "there is no task type 'detect'"),
        ("distance(location, POINT(52.5 113.4)) < 1", "may be swapped"),
        ("S_INTERSECTS(location, POINT(52.5 113.4))", "may be swapped"),
        ("distance(location, POINT(13.4 52.5)) < -5", "a distance cannot be negative"),
        ("distance(location, POINT(13.4 52.5)) < 0", "a distance cannot be negative"),
        ("distance(location, POINT(13.4 52.5)) = -5", "a distance cannot be negative"),
        ("NOT -5 >= distance(location, POINT(13.4 52.5))", "a distance cannot be negative"),
        ("distance(location, POINT(13.4 52.5)) BETWEEN -9 AND -5", "a distance cannot be negative"),
        ("-5 BETWEEN distance(location, POINT(13.4 52.5)) AND 9", "a distance cannot be negative"),
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
    with pytest.raises(ImpossibleComparison, match="'xyz' is not a uid") as caught:
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
        sentence = r"Nothing is BETWEEN '.*' AND '.*': the lower bound comes first\."
        assert re.fullmatch(sentence, warning), text


def test_bounds_that_are_right_or_not_known_are_not_warned_of() -> None:
    assert not check_filter("frame_number BETWEEN 3 AND 3").warnings
    assert not check_filter("3 BETWEEN frame_number AND camera_position.angle").warnings
