"""Unknown is not zero; shapes of answers; ranks; bounds."""

import json

from .answers import find_items, list_columns, make_v2, read

CAT = {"label": "cat", "score": 0.7}
DOG = {"label": "dog", "score": 0.3}


def test_flags_unreadable_responses() -> None:
    for response, flag in (
        (None, "response_missing"),
        (b"", "response_missing"),
        (b" \n", "response_missing"),
        (b"{", "response_unreadable"),
        (b"\xff\xfe\x00", "response_unreadable"),
        (b"[" * 100_000, "response_unreadable"),
        (b'{"outputs": 5}', "response_unreadable"),
        (b'{"error": "out of \\u0000 memory"}', "response_error"),
        (b'{"outputs": [{"name": "o", "datatype": "FP32", "shape": [4]}]}', "response_binary"),
        (b'{"weather": "fine"}', "response_unreadable"),
        (b"[1.5, {}]", "class_labels_mismatch"),
    ):
        predictions = read("image_classification", response, labels=("a", "b", "c"))
        assert predictions.items is None, response
        assert flag in predictions.flags, response
        assert predictions.problem or flag == "response_missing", response


def test_a_failed_request_has_unknown_predictions() -> None:
    predictions = read("image_classification", make_v2([CAT]), ok=False)
    assert (predictions.items, predictions.flags) == (None, ("response_failed",))
    assert find_items(read("image_classification", make_v2([CAT]), ok=True))


def test_an_unknown_task_type_has_unknown_predictions() -> None:
    predictions = read("unknown", make_v2([CAT]))
    assert (predictions.items, predictions.flags) == (None, ("task_type_unknown",))
    assert predictions.problem is None


def test_an_empty_response_has_no_predictions() -> None:
    for task_type in ("object_detection", "image_classification", "ner"):
        for response in (make_v2([]), make_v2([[]]), make_v2(["[]"]), b"[]", b'{"outputs": []}'):
            assert read(task_type, response).items == ()


def test_all_wrappings_have_the_same_meaning() -> None:
    for document in (
        [CAT, DOG],
        [[CAT, DOG]],
        {"output": [CAT, DOG]},
        {"predictions": [CAT, DOG]},
        {"predictions": [[CAT, DOG]]},
        {"data": [CAT, DOG]},
        {"outputs": [CAT, DOG]},
        {"outputs": [[CAT, DOG]]},
        {"outputs": {"o": [CAT, DOG]}},
        {"outputs": [{"data": [CAT, DOG]}]},
        [{"name": "o", "data": [CAT, DOG]}],
        {"outputs": [{"name": "o", "shape": [777], "datatype": "BYTES", "data": [CAT, DOG]}]},
        {"outputs": [{"name": "o", "shape": [1], "data": [[CAT, DOG]]}]},
        {"outputs": [{"name": "o", "data": [json.dumps(CAT), json.dumps(DOG)]}]},
        {"outputs": [{"name": "o", "data": [json.dumps([CAT, DOG])]}]},
        {"outputs": [{"name": "o", "data": [json.dumps([[CAT, DOG]])]}]},
        {"outputs": [{"name": "o", "data": json.dumps([CAT, DOG])}]},
        json.dumps([CAT, DOG]),
    ):
        predictions = read("image_classification", json.dumps(document).encode())
        assert list_columns(predictions, "label", "score") == [("cat", 0.7), ("dog", 0.3)], document
        assert predictions.flags == (), document


def test_reads_a_single_object_as_one_prediction() -> None:
    assert list_columns(read("image_classification", json.dumps(CAT).encode()), "label") == [
        ("cat",)
    ]


def test_several_outputs_keep_their_index_and_name() -> None:
    outputs = [{"name": "first", "data": [CAT]}, {"name": "second", "data": [DOG, CAT]}]
    predictions = read("image_classification", json.dumps({"outputs": outputs}).encode())
    assert list_columns(predictions, "ordinal", "output", "output_name", "rank") == [
        (0, 0, "first", 1),
        (1, 1, "second", 3),
        (2, 1, "second", 2),
    ]


def test_rank_is_by_score_then_order_and_without_scores_by_order() -> None:
    scores = [0.2, None, 0.9, 0.2, None]
    data = [{"label": "x", "score": score} for score in scores]
    ranks = list_columns(read("image_classification", make_v2(data)), "rank")
    assert [rank for (rank,) in ranks] == [2, 4, 1, 3, 5]
    assert list_columns(read("image_classification", make_v2(["a", "b"])), "rank") == [(1,), (2,)]


def test_a_score_that_is_not_finite_is_unknown_and_flagged() -> None:
    for score in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 400):
        response = b'{"outputs": [{"name": "o", "data": [{"label": "cat", "score": %s}]}]}'
        predictions = read("image_classification", response % score.encode())
        assert list_columns(predictions, "label", "score", "rank") == [("cat", None, 1)], score
        assert predictions.flags == ("not_finite",), score


def test_a_score_that_is_no_number_is_unknown_and_flagged() -> None:
    for score in ("high", True, [0.5], {"v": 1}):
        predictions = read("image_classification", make_v2([{"label": "cat", "score": score}]))
        assert list_columns(predictions, "label", "score") == [("cat", None)], score
        assert predictions.flags == ("not_a_number",), score


def test_a_score_as_text_is_a_score() -> None:
    predictions = read("image_classification", make_v2([{"label": "cat", "score": "0.5"}]))
    assert list_columns(predictions, "score") == [(0.5,)]


def test_a_label_that_cannot_be_kept_is_unknown_and_flagged() -> None:
    for label in ("a\0", "\ud800", "x" * 257):
        predictions = read(
            "image_classification", make_v2([{"label": label, "score": 0.5}], name=label)
        )
        assert list_columns(predictions, "label", "score", "output_name") == [(None, 0.5, None)]
        assert predictions.flags in {("text_unstorable",), ("label_too_long",)}, label


def test_some_unreadable_elements_do_not_take_the_others_with_them() -> None:
    predictions = read("object_detection", make_v2([5, CAT, {"weather": "fine"}]))
    assert list_columns(predictions, "ordinal", "label") == [(0, "cat")]
    assert "elements_unreadable" in predictions.flags
    assert (predictions.problem or "").startswith("2 elements are not")


def test_predictions_are_capped() -> None:
    predictions = read("image_classification", make_v2(["x"] * 10_001))
    assert len(find_items(predictions)) == 10_000
    assert predictions.flags == ("predictions_capped",)
    assert read("image_classification", make_v2(["x"] * 10_000)).flags == ()


def test_reads_other_encodings_of_json() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        response = json.dumps([{"label": "Käse", "score": 1}], ensure_ascii=False).encode(encoding)
        assert list_columns(read("image_classification", response), "label") == [("Käse",)]
