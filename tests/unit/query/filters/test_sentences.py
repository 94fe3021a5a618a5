"""Every sentence that is promised of the filter language's names, values and refusals."""

import re
from datetime import UTC, datetime

import pytest

from inference_store.inference.errors import (
    ImpossibleComparison,
    Invalid,
    InvalidFilter,
    UnknownKey,
)
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.check import check
from inference_store.query.filters.evaluate import evaluate
from inference_store.query.filters.known_keys import KnownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES
from tests.unit.query.filters.evaluation import KNOWN, check_filter, evaluate_filter, make_facts

_NOW = datetime(2026, 11, 2, tzinfo=UTC)


@pytest.mark.parametrize("name", sorted(PROPERTIES.keys() - {"location", "width"}))
def test_the_own_properties_are_a_closed_list_bare_or_with_inference(name: str) -> None:
    assert check_filter(f"{name} IS NULL") == check_filter(f"inference.{name} IS NULL")


def test_a_property_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidFilter, match="received_at") as caught:
        check_filter("inference.recieved_at IS NULL")
    assert "received_at" in caught.value.faults[0].known


def test_other_names_are_metadata_keys_bare_or_with_metadata() -> None:
    for name in ("frame_number", "metadata.frame_number"):
        assert evaluate_filter(f"{name} > 9000", {"frame_number": 9001}) is True


def test_a_bare_name_that_is_both_offers_the_two() -> None:
    with pytest.raises(InvalidFilter) as caught:
        check_filter("width > 3")
    assert caught.value.faults[0].known == ("inference.width", "metadata.width")
    assert (
        evaluate_filter("metadata.width = 3 AND inference.width = 4", {"width": 3}, width=4) is True
    )


def test_quotes_quote_any_name() -> None:
    assert evaluate_filter('"camera-id" = 3', {"camera-id": 3}) is True
    assert evaluate_filter("\"tags[]\" = 'a'", {"tags": ["b", "a"]}) is True
    assert evaluate_filter('"frame_number" = 3', {"frame_number": 3}) is True


def test_a_hyphen_is_a_subtraction_and_the_error_suggests_the_quotes() -> None:
    known_keys = KnownKeys(KNOWN.keys, {"camera": (), "id": ()})
    with pytest.raises(UnknownKey, match=r'probably meant: "camera-id"$') as caught:
        check_filter("camera-id = 3", known_keys=known_keys)
    assert caught.value.faults[0].known == ('"camera-id"',)
    with pytest.raises(UnknownKey, match=r'probably meant: "a-camera-id"$'):
        check_filter("a-camera-id = 3", known_keys=known_keys)
    with pytest.raises(ImpossibleComparison, match=r'probably meant: "camera-id"$'):
        check_filter("camera-id = 'cam-3'", known_keys=known_keys)


def test_double_quotes_around_a_text_suggest_single_ones() -> None:
    with pytest.raises(UnknownKey, match=r"probably meant: 'hallway'$"):
        check_filter('data_source = "hallway"')


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("data_source = hallway", "'hallway'"),
        ("hallway <> data_source", "'hallway'"),
        ("model_version IN ('1', v2)", "'v2'"),
        ("data_source BETWEEN a AND b", "'a'"),
        ("data_source = hallway.jpg", "'hallway.jpg'"),
        ("data_source = hallway-camera-feed", "'hallway-camera-feed'"),
        ("top_label = face", "'face'"),
        ("prediction(label = face)", "'face'"),
        ("CASEI(data_source) = CASEI(Hallway)", "'Hallway'"),
    ],
)
def test_a_text_without_quotes_is_answered_with_them(text: str, meant: str) -> None:
    with pytest.raises(Invalid, match=f"probably meant: {re.escape(meant)}\\.?$") as caught:
        check_filter(text)
    assert caught.value.faults[0].known[0] == meant


@pytest.mark.parametrize("text", ["frame_number = frame_no", "nobody = hallway", "hallway"])
def test_unquoted_values_compared_with_numbers_are_no_texts(text: str) -> None:
    with pytest.raises(UnknownKey) as caught:
        check_filter(text)
    assert "'hallway'" not in caught.value.faults[0].known
    assert "probably meant" not in caught.value.detail


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("label = 'face'", "prediction(label = 'face') or top_label = 'face'"),
        ("prediction.label = 'face'", "prediction(label = 'face') or top_label = 'face'"),
        ("predictions.score < 0.4", "prediction(score < 0.4) or top_score < 0.4"),
        ("label IN ('face', 'cat')", "prediction(label IN ('face', 'cat'))"),
        ("'face' = label", "prediction('face' = label)"),
        ("label LIKE 'f%'", "prediction(label LIKE 'f%')"),
        ("metadata.xmin BETWEEN 1 AND 2", "prediction(xmin BETWEEN 1 AND 2)"),
        ("CASEI(label) = CASEI('Face')", "prediction(CASEI(label) = CASEI('Face'))"),
        ("xmin < prediction.xmax", "prediction(xmin < xmax)"),
        ("label IS NULL", "prediction(label IS NULL)"),
        ("label = frame_no", "prediction(label …)"),
        (f"label = '{'a' * 500}'", "prediction(label …)"),
    ],
)
def test_a_column_outside_is_answered_with_the_condition(text: str, meant: str) -> None:
    with pytest.raises(UnknownKey) as caught:
        check_filter(text)
    assert f"probably meant: {meant}" in caught.value.detail
    assert caught.value.faults[0].known[0].startswith(meant.split(" or ", maxsplit=1)[0])


def test_inside_prediction_names_are_columns_only() -> None:
    for name in ("frame_number", "received_at", "metadata.frame_number", "inference.ok"):
        with pytest.raises(InvalidFilter, match="columns of a prediction") as caught:
            check_filter(f"prediction({name} IS NULL)")
        assert caught.value.faults[0].known == tuple(PREDICTION_COLUMNS)
    rows = ({"label": "person", "score": 0.3},)
    assert evaluate_filter("prediction(label = 'person' AND score < 0.4)", predictions=rows) is True


def test_a_column_is_no_name_outside() -> None:
    with pytest.raises(UnknownKey):
        check_filter("score > 0.5")


def test_a_bare_boolean_is_a_condition() -> None:
    assert evaluate_filter("NOT ok", ok=False) is True
    assert evaluate_filter("day", {"day": True}) is True
    assert evaluate_filter("day AND ok", {"day": True}) is None
    with pytest.raises(ImpossibleComparison, match="int"):
        check_filter("frame_number AND ok")


def test_between_on_text_and_times() -> None:
    assert evaluate_filter("data_source BETWEEN 'a' AND 'c'", {"data_source": "b"}) is True
    text = "received_at BETWEEN DATE('2026-11-01') AND TIMESTAMP('2026-11-02T00:00:00Z')"
    assert evaluate_filter(text, received_at=_NOW) is True


def test_a_missing_key_is_null() -> None:
    assert evaluate_filter("frame_number <> 3") is None
    assert evaluate_filter("NOT frame_number = 3") is None
    assert evaluate_filter("frame_number <> 3", {"frame_number": 4}) is True
    assert evaluate_filter("frame_number IS NULL") is True
    assert evaluate_filter("frame_number IS NULL", {"frame_number": None}) is True
    assert evaluate_filter("frame_number IS NOT NULL", {"frame_number": "x"}) is True
    assert evaluate_filter("sent(frame_number)", {"frame_number": None}) is True


def test_a_comparison_of_several_values_holds_when_some_value_satisfies_it() -> None:
    two = {"tags": ["a", "b"]}
    assert evaluate_filter("\"tags[]\" = 'a'", two) is True
    assert evaluate_filter("\"tags[]\" <> 'a'", two) is True
    # NOT negates the whole.
    assert evaluate_filter("NOT \"tags[]\" = 'a'", two) is False
    assert evaluate_filter("NOT \"tags[]\" = 'c'", two) is True
    assert evaluate_filter('"tags[]" IS NULL', two) is False
    assert evaluate_filter('"tags[]" IS NULL', {"tags": []}) is True
    assert evaluate_filter("NOT \"tags[]\" = 'c'", {"tags": []}) is None


def test_an_unknown_key_is_refused_with_the_nearest_names() -> None:
    text = "ok AND\n  frame_no > 9000"
    with pytest.raises(UnknownKey) as caught:
        check_filter(text)
    [fault] = caught.value.faults
    assert fault.known[0] == "frame_number"
    assert "line 2, column 3" in fault.message
    assert fault.message.endswith("  frame_no > 9000\n    ^^^^^^^^")


def test_an_unknown_name_is_refused_with_the_nearest_properties_too() -> None:
    known_keys = KnownKeys(KNOWN.keys, {"data_size_bytes": ("data_source",)})
    with pytest.raises(UnknownKey, match="nearest are data_size, ") as caught:
        check_filter("data_size_bytes > 10", known_keys=known_keys)
    assert set(caught.value.faults[0].known) >= {"data_size", "data_source"}
    for text in ("metadata.data_size_bytes > 10", "sent(data_size_bytes)"):
        with pytest.raises(UnknownKey) as caught:
            check_filter(text, known_keys=known_keys)
        assert caught.value.faults[0].known == ("data_source",)


def test_the_property_of_a_name_is_not_near_where_only_a_key_can_be() -> None:
    with pytest.raises(UnknownKey) as caught:
        check_filter("sent(received_at)")
    assert "received_at" not in caught.value.faults[0].known


def test_an_impossible_comparison_is_refused_with_the_types_seen() -> None:
    with pytest.raises(ImpossibleComparison) as caught:
        check_filter("frame_number > 'abc'")
    [fault] = caught.value.faults
    assert fault.known == ("int",)
    assert "'frame_number' has been seen as int" in fault.message
    assert "line 1, column 16" in fault.message
    assert fault.message.endswith("^^^^^")


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
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
    ],
)
def test_names_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(Invalid, match=re.escape(remedy)):
        check_filter(text)


def test_unknown_keys_can_be_empty() -> None:
    empty = check_filter("nobody = 'x' OR ok", unknown_keys="empty")
    assert not empty.warnings
    assert evaluate(empty.predicate, make_facts(ok=False)) is None
    assert evaluate(empty.predicate, make_facts(ok=True)) is True
    assert (
        evaluate(check_filter("nobody IS NULL", unknown_keys="empty").predicate, make_facts())
        is True
    )
    assert (
        evaluate(check_filter("sent(nobody)", unknown_keys="empty").predicate, make_facts())
        is False
    )


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
    with pytest.raises(Invalid, match="NUL"):
        check_filter("data_source = 'a\0b'")


def test_gives_the_path_if_there_is_no_text() -> None:
    with pytest.raises(UnknownKey) as caught:
        check(parse_text("frame_no = 1"), KNOWN)
    assert caught.value.faults[0].path == "filter"
    assert caught.value.detail.startswith("filter: ")
