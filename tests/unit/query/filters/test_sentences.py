"""Every sentence that is promised of the filter language's names, values and refusals."""

import pytest

from inference_store.inference.errors import (
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import evaluate, without_accents, without_case
from inference_store.query.filters.names import KnownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.unit.query.filters.evaluation import (
    KNOWN,
    check_filter,
    evaluate_filter,
    find_refusal,
    make_facts,
)


def test_the_own_properties_are_a_closed_list_bare_or_with_inference() -> None:
    for name in sorted(PROPERTIES.keys() - {"location", "width"}):
        assert check_filter(f"{name} IS NULL") == check_filter(f"inference.{name} IS NULL"), name


def test_a_property_that_is_not_there_is_refused_with_the_nearest() -> None:
    near = ("received_at", "responded_at", "indexed_at", "published_at", "forwarded_at")
    for name, known in [
        ("recieved_at", near),
        ("widht", ("width", "height")),
        ("zzzzzz", tuple(PROPERTIES)),  # none is spelt alike
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
        ("label = 'face'", "label"),
        ("prediction.label = 'face'", "label"),
        ("predictions.score < 0.4", "score"),
        ("metadata.xmin BETWEEN 1 AND 2", "xmin"),
        ("label IS NULL", "label"),
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
        ("to_label = 'x'", ("top_label",)),
        ("sent(received_at)", ()),
    ]:
        refusal = find_refusal(text, UnknownKey, known_keys)
        assert refusal.faults[0].known == known, text
        hint = f"nearest are {', '.join(known)}." if known else "none is spelt alike."
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
        ("received_at > '2026-11-01'", "TIMESTAMP('2026-11-01T00:00:00Z')"),
        ("seen = '2026-11-01T00:00:00Z'", "TIMESTAMP('2026-11-01T00:00:00Z')"),
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
    assert "70 values" in check_filter("speed = 'fast'").warnings[0]
    # Of two names the kind that most rows have.
    assert "number" in check_filter("speed = speed").warnings[0]


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
        assert without_case(first) == without_case(second), pair
        assert without_case(without_case(first)) == without_case(first), pair


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
