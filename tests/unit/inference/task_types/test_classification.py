"""Image and text classification."""

import math

import pytest

from inference_store.inference.task_types import OutputMapping

from .answers import list_columns, make_tensors, make_v2, read

LABELS = ("ant", "bee", "cat")
LABELLED = [("ant", 0.1), ("bee", 0.7), ("cat", 0.2)]


def test_the_published_example() -> None:
    predictions = read(
        "IMAGE_CLASSIFICATION",
        make_v2([{"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.3}]),
    )
    assert list_columns(predictions, "label", "score", "rank") == [("cat", 0.7, 1), ("dog", 0.3, 2)]


def test_bare_labels() -> None:
    assert list_columns(read("image_classification", make_v2(["cat"])), "label", "score") == [
        ("cat", None)
    ]


@pytest.mark.parametrize("data", [[[0.1, 0.7, 0.2]], [0.1, 0.7, 0.2], [[[0.1, 0.7, 0.2]]]])
def test_reads_one_number_for_each_class(data: list[object]) -> None:
    predictions = read("image_classification", make_tensors(p=data), labels=LABELS)
    assert list_columns(predictions, "label", "score") == LABELLED
    assert list_columns(predictions, "rank") == [(3,), (1,), (2,)]


def test_several_rows_of_classes_are_all_kept() -> None:
    predictions = read(
        "image_classification", make_tensors(p=[0.1, 0.7, 0.2, 1, 0, 0]), labels=LABELS
    )
    assert list_columns(predictions, "label", "score") == [
        *LABELLED,
        ("ant", 1.0),
        ("bee", 0.0),
        ("cat", 0.0),
    ]


def test_without_class_labels_a_class_is_its_index() -> None:
    predictions = read("image_classification", make_tensors(p=[[0.1, 0.9]]))
    assert list_columns(predictions, "label", "score") == [("0", 0.1), ("1", 0.9)]
    assert predictions.flags == ("no_class_labels",)


def test_numbers_that_do_not_fit_the_class_labels_are_unknown() -> None:
    predictions = read("image_classification", make_tensors(p=[[0.1, 0.9]]), labels=LABELS)
    assert predictions.items is None
    assert predictions.flags == ("class_labels_mismatch",)
    assert "3 class labels" in (predictions.problem or "")


def test_the_index_of_a_class() -> None:
    assert list_columns(
        read("image_classification", make_v2([2], datatype="INT64"), labels=LABELS), "label"
    )
    for response in (make_v2([2], datatype="INT64"), make_tensors(label=[2])):
        predictions = read("image_classification", response, labels=LABELS)
        assert list_columns(predictions, "label", "score") == [("cat", None)]
    numbered = make_v2([{"label": 1, "score": 0.5}, {"label": 7, "score": 0.5}])
    predictions = read("image_classification", numbered, labels=LABELS)
    assert list_columns(predictions, "label") == [("bee",), ("7",)]


def test_the_mapping_names_the_tensor_of_class_scores() -> None:
    mapping = OutputMapping(class_probabilities="p")
    response = make_tensors(embedding=[1, 2, 3, 4], p=[[0.1, 0.7, 0.2]])
    predictions = read("image_classification", response, labels=LABELS, mapping=mapping)
    assert list_columns(predictions, "label", "score") == LABELLED
    assert list_columns(predictions, "output", "output_name")[0] == (1, "p")


def test_the_mapping_names_labels_and_scores() -> None:
    mapping = OutputMapping(labels="classes", scores="confidence")
    response = make_tensors(classes=["bee", "cat"], confidence=[0.6, 0.4])
    predictions = read("image_classification", response, mapping=mapping)
    assert list_columns(predictions, "label", "score") == [("bee", 0.6), ("cat", 0.4)]


def test_softmax_and_sigmoid() -> None:
    logits = make_tensors(p=[[1.0, 1000.0, -1000.0]])
    for activation, expected in (
        ("softmax", [0.0, 1.0, 0.0]),
        ("sigmoid", [1 / (1 + math.exp(-1)), 1.0, 0.0]),
    ):
        mapping = OutputMapping.model_validate({"activation": activation})
        predictions = read("image_classification", logits, labels=LABELS, mapping=mapping)
        assert [score for (score,) in list_columns(predictions, "score")] == pytest.approx(expected)


def test_a_softmax_with_an_unknown_number_is_unknown() -> None:
    response = b'{"outputs": [{"name": "p", "data": [0.5, NaN, 1]}]}'
    mapping = OutputMapping(activation="softmax")
    predictions = read("image_classification", response, labels=LABELS, mapping=mapping)
    assert list_columns(predictions, "score") == [(None,)] * 3
    assert predictions.flags == ("not_finite",)


def test_the_hugging_face_pipelines() -> None:
    data = ['{"label": "POSITIVE", "score": 0.99}']
    predictions = read(
        "text_classification", make_v2(data, parameters={"content_type": "hg_jsonlist"})
    )
    assert list_columns(predictions, "label", "score") == [("POSITIVE", 0.99)]
    zero_shot = [{"sequence": "hello", "labels": ["a", "b"], "scores": [0.9]}]
    predictions = read("zero-shot-classification", make_v2(zero_shot))
    assert list_columns(predictions, "label", "score") == [("a", 0.9), ("b", None)]
    mask = [{"score": 0.4, "token": 7, "token_str": "sea", "sequence": "the sea"}]
    predictions = read("fill-mask", make_v2(mask))
    assert list_columns(predictions, "label", "score", "text") == [("sea", 0.4, "the sea")]


BROKEN = '[\n{"label": "cat", "score": 0.9},\n{"label": "do'


@pytest.mark.parametrize(
    "text", [BROKEN, '{"label": "cat"', "[", " [0.1, 0.9", "{'label': 'cat'", '{"name": "x"']
)
@pytest.mark.parametrize("task_type", ["image_classification", "text_classification", "tabular"])
def test_text_that_is_broken_json_is_no_label(task_type: str, text: str) -> None:
    predictions = read(task_type, make_v2([text]))
    assert (predictions.items, predictions.flags) == (None, ("response_unreadable",))
    predictions = read(task_type, make_v2(["cat", text]))
    assert list_columns(predictions, "label") == [("cat",)]
    assert predictions.flags == ("elements_unreadable",)


def test_labels_may_begin_with_a_bracket() -> None:
    data = ["[UNK]", "{other}", "[MASK] x"]
    predictions = read("image_classification", make_v2(data))
    assert [label for (label,) in list_columns(predictions, "label")] == data
    assert predictions.flags == ()


@pytest.mark.parametrize("labels", ["label", "labels", "class", "classes", "Classes"])
@pytest.mark.parametrize(
    "scores", ["score", "scores", "probability", "probabilities", "confidence", "Score"]
)
def test_common_names_need_no_mapping(labels: str, scores: str) -> None:
    columns_of_answer = {"embedding": [1, 2, 3, 4], labels: ["bee", "cat"], scores: [[0.6, 0.4]]}
    predictions = read("image_classification", make_tensors(**columns_of_answer))
    assert list_columns(predictions, "label", "score") == [("bee", 0.6), ("cat", 0.4)]
    assert predictions.flags == ()


@pytest.mark.parametrize("index", [2, 2.0])
def test_a_named_index_is_a_class_label(index: float) -> None:
    predictions = read(
        "image_classification", make_tensors(confidence=[0.9], label=[index]), labels=LABELS
    )
    assert list_columns(predictions, "label", "score") == [("cat", 0.9)]
    predictions = read("image_classification", make_tensors(classes=[index]), labels=LABELS)
    assert list_columns(predictions, "label", "score") == [("cat", None)]


def test_named_scores_of_all_classes_are_read_by_the_class_labels() -> None:
    answer = {"label": ["bee"], "probabilities": [0.1, 0.7, 0.2]}
    predictions = read("image_classification", make_tensors(**answer), labels=LABELS)
    assert list_columns(predictions, "label", "score") == LABELLED
    answer = {"embedding": [1, 2, 3, 4], "score": [0.7], "probabilities": [0.1, 0.7, 0.2]}
    predictions = read("image_classification", make_tensors(**answer), labels=LABELS)
    assert list_columns(predictions, "label", "score") == LABELLED


def test_a_label_never_gets_a_score_of_another() -> None:
    predictions = read(
        "image_classification", make_tensors(label=["bee"], probabilities=[0.1, 0.7, 0.2])
    )
    assert list_columns(predictions, "label", "score") == [("bee", None)]
    assert predictions.flags == ("tensor_mismatch",)


def test_names_that_fit_nothing_change_nothing() -> None:
    predictions = read("image_classification", make_tensors(classes=[0.1, 0.7, 0.2]), labels=LABELS)
    assert list_columns(predictions, "label", "score") == LABELLED
    predictions = read("image_classification", make_tensors(classes=[0, 1, 0]), labels=LABELS)
    assert list_columns(predictions, "label", "score") == [("ant", 0.0), ("bee", 1.0), ("cat", 0.0)]
    objects = make_v2([{"label": "cat", "score": 0.7}], name="label")
    assert list_columns(read("image_classification", objects), "label", "score") == [("cat", 0.7)]


def test_the_mapping_wins_over_common_names() -> None:
    mapping = OutputMapping(class_probabilities="p")
    response = make_tensors(label=["x"], score=[0.5], p=[0.1, 0.7, 0.2])
    predictions = read("image_classification", response, labels=LABELS, mapping=mapping)
    assert list_columns(predictions, "label", "score") == LABELLED
