"""Image and text classification."""

import math
from typing import Any

import pytest

from inference_store.inference.task_types import OutputMapping, Predictions

from .answers import list_columns, make_tensors, make_v2, read

LABELS = ("ant", "bee", "cat")
LABELLED: list[tuple[str, float | None]] = [("ant", 0.1), ("bee", 0.7), ("cat", 0.2)]


def classify(response: bytes, **more: Any) -> Predictions:
    return read("image_classification", response, **more)


def list_classes(predictions: Predictions) -> list[tuple[Any, ...]]:
    return list_columns(predictions, "label", "score")


def test_the_published_example() -> None:
    cat, dog = {"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.3}
    predictions = read("IMAGE_CLASSIFICATION", make_v2([cat, dog]))
    assert list_columns(predictions, "label", "score", "rank") == [("cat", 0.7, 1), ("dog", 0.3, 2)]


def test_one_number_for_each_class() -> None:
    for data in ([[0.1, 0.7, 0.2]], [0.1, 0.7, 0.2], [[[0.1, 0.7, 0.2]]]):
        predictions = classify(make_tensors(p=data), labels=LABELS)
        assert list_classes(predictions) == LABELLED
        assert list_columns(predictions, "rank") == [(3,), (1,), (2,)]


def test_several_rows_of_classes_are_all_kept() -> None:
    predictions = classify(make_tensors(p=[0.1, 0.7, 0.2, 1, 0, 0]), labels=LABELS)
    assert list_classes(predictions) == [*LABELLED, ("ant", 1.0), ("bee", 0.0), ("cat", 0.0)]


def test_without_class_labels_a_class_is_its_index() -> None:
    predictions = classify(make_tensors(p=[[0.1, 0.9]]))
    assert list_classes(predictions) == [("0", 0.1), ("1", 0.9)]
    assert predictions.flags == ("no_class_labels",)


def test_numbers_that_do_not_fit_the_class_labels_are_unknown() -> None:
    predictions = classify(make_tensors(p=[[0.1, 0.9]]), labels=LABELS)
    assert predictions.items is None
    assert predictions.flags == ("class_labels_mismatch",)
    assert "3 class labels" in (predictions.problem or "")


def test_labels_and_indexes_of_classes() -> None:
    numbered = make_v2([{"label": 1, "score": 0.5}, {"label": 7, "score": 0.5}])
    answer = {"embedding": [1, 2, 3, 4], "score": [0.7], "probabilities": [0.1, 0.7, 0.2]}
    cases: list[tuple[bytes, list[tuple[str, float | None]]]] = [
        (make_v2(["cat"]), [("cat", None)]),
        (make_v2([2], datatype="INT64"), [("cat", None)]),
        (make_tensors(label=[2]), [("cat", None)]),
        (numbered, [("bee", 0.5), ("7", 0.5)]),
        (make_tensors(confidence=[0.9], label=[2]), [("cat", 0.9)]),
        (make_tensors(confidence=[0.9], label=[2.0]), [("cat", 0.9)]),
        (make_tensors(classes=[2]), [("cat", None)]),
        (make_tensors(classes=[2.0]), [("cat", None)]),
        # named scores of all classes are read by the class labels
        (make_tensors(label=["bee"], probabilities=[0.1, 0.7, 0.2]), LABELLED),
        (make_tensors(**answer), LABELLED),
        # names that fit nothing change nothing
        (make_tensors(classes=[0.1, 0.7, 0.2]), LABELLED),
        (make_tensors(classes=[0, 1, 0]), [("ant", 0.0), ("bee", 1.0), ("cat", 0.0)]),
        (make_v2([{"label": "cat", "score": 0.7}], name="label"), [("cat", 0.7)]),
    ]
    for response, expected in cases:
        assert list_classes(classify(response, labels=LABELS)) == expected, response


def test_the_mapping_names_the_tensors_and_wins_over_common_names() -> None:
    mapping = OutputMapping(class_probabilities="p")
    others: dict[str, Any]
    for others in ({"embedding": [1, 2, 3, 4]}, {"label": ["x"], "score": [0.5]}):
        response = make_tensors(**others, p=[[0.1, 0.7, 0.2]])
        predictions = classify(response, labels=LABELS, mapping=mapping)
        assert list_classes(predictions) == LABELLED
        assert list_columns(predictions, "output", "output_name")[0] == (len(others), "p")
    mapping = OutputMapping(labels="classes", scores="confidence")
    response = make_tensors(classes=["bee", "cat"], confidence=[0.6, 0.4])
    assert list_classes(classify(response, mapping=mapping)) == [("bee", 0.6), ("cat", 0.4)]


def test_softmax_and_sigmoid() -> None:
    logits = make_tensors(p=[[1.0, 1000.0, -1000.0]])
    for activation, expected in (
        ("softmax", [0.0, 1.0, 0.0]),
        ("sigmoid", [1 / (1 + math.exp(-1)), 1.0, 0.0]),
    ):
        mapping = OutputMapping.model_validate({"activation": activation})
        predictions = classify(logits, labels=LABELS, mapping=mapping)
        assert [score for (score,) in list_columns(predictions, "score")] == pytest.approx(expected)


def test_a_softmax_with_an_unknown_number_is_unknown() -> None:
    response = b'{"outputs": [{"name": "p", "data": [0.5, NaN, 1]}]}'
    mapping = OutputMapping(activation="softmax")
    predictions = classify(response, labels=LABELS, mapping=mapping)
    assert list_columns(predictions, "score") == [(None,)] * 3
    assert predictions.flags == ("not_finite",)


def test_the_hugging_face_pipelines() -> None:
    data = ['{"label": "POSITIVE", "score": 0.99}']
    response = make_v2(data, parameters={"content_type": "hg_jsonlist"})
    assert list_classes(read("text_classification", response)) == [("POSITIVE", 0.99)]
    zero_shot = [{"sequence": "hello", "labels": ["a", "b"], "scores": [0.9]}]
    predictions = read("zero-shot-classification", make_v2(zero_shot))
    assert list_classes(predictions) == [("a", 0.9), ("b", None)]
    mask = [{"score": 0.4, "token": 7, "token_str": "sea", "sequence": "the sea"}]
    predictions = read("fill-mask", make_v2(mask))
    assert list_columns(predictions, "label", "score", "text") == [("sea", 0.4, "the sea")]


BROKEN = '[\n{"label": "cat", "score": 0.9},\n{"label": "do'


def test_text_that_is_broken_json_is_no_label() -> None:
    for text in (BROKEN, '{"label": "cat"', "[", " [0.1, 0.9", "{'label': 'cat'", '{"name": "x"'):
        for task_type in ("image_classification", "text_classification", "tabular"):
            predictions = read(task_type, make_v2([text]))
            expected = (None, ("response_unreadable",))
            assert (predictions.items, predictions.flags) == expected, (task_type, text)
            predictions = read(task_type, make_v2(["cat", text]))
            assert list_columns(predictions, "label") == [("cat",)], (task_type, text)
            assert predictions.flags == ("elements_unreadable",), (task_type, text)


def test_labels_may_begin_with_a_bracket() -> None:
    data = ["[UNK]", "{other}", "[MASK] x"]
    predictions = classify(make_v2(data))
    assert [label for (label,) in list_columns(predictions, "label")] == data
    assert predictions.flags == ()


def test_common_names_need_no_mapping() -> None:
    for labels in ("label", "labels", "class", "classes", "Classes"):
        for scores in (
            *("score", "scores", "Score"),
            *("probability", "probabilities", "confidence"),
        ):
            answer = {"embedding": [1, 2, 3, 4], labels: ["bee", "cat"], scores: [[0.6, 0.4]]}
            predictions = classify(make_tensors(**answer))
            assert list_classes(predictions) == [("bee", 0.6), ("cat", 0.4)], (labels, scores)
            assert predictions.flags == (), (labels, scores)


def test_a_label_never_gets_a_score_of_another() -> None:
    predictions = classify(make_tensors(label=["bee"], probabilities=[0.1, 0.7, 0.2]))
    assert list_classes(predictions) == [("bee", None)]
    assert predictions.flags == ("tensor_mismatch",)
