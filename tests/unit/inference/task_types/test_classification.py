"""Image and text classification."""

import json
import math
from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from inference_store.inference.task_types import OutputMapping, PredictionCaps, Predictions

from .answers import list_columns, make_tensors, make_v2, read

LABELS = ("ant", "bee", "cat")
LABELLED: list[tuple[str, float | None]] = [("ant", 0.1), ("bee", 0.7), ("cat", 0.2)]


def classify(response: bytes, **more: Any) -> Predictions:
    return read("image_classification", response, **more)


def list_classes(predictions: Predictions) -> list[tuple[Any, ...]]:
    return list_columns(predictions, "label", "score")


def test_published_examples_and_pipelines() -> None:
    cat, dog = {"label": "cat", "score": 0.7}, {"label": "dog", "score": 0.3}
    predictions = read("IMAGE_CLASSIFICATION", make_v2([cat, dog]))
    assert list_columns(predictions, "label", "score", "rank") == [("cat", 0.7, 1), ("dog", 0.3, 2)]
    data = ['{"label": "POSITIVE", "score": 0.99}']
    response = make_v2(data, parameters={"content_type": "hg_jsonlist"})
    assert list_classes(read("text_classification", response)) == [("POSITIVE", 0.99)]
    zero_shot = [{"sequence": "hello", "labels": ["a", "b"], "scores": [0.9]}]
    predictions = read("zero-shot-classification", make_v2(zero_shot))
    assert list_classes(predictions) == [("a", 0.9), ("b", None)]
    mask = [{"score": 0.4, "token": 7, "token_str": "sea", "sequence": "the sea"}]
    predictions = read("fill-mask", make_v2(mask))
    assert list_columns(predictions, "label", "score", "text") == [("sea", 0.4, "the sea")]


def test_one_number_for_each_class() -> None:
    for data in ([[0.1, 0.7, 0.2]], [0.1, 0.7, 0.2], [[[0.1, 0.7, 0.2]]]):
        predictions = classify(make_tensors(p=data), labels=LABELS)
        assert list_classes(predictions) == LABELLED
        assert list_columns(predictions, "rank") == [(3,), (1,), (2,)]
    predictions = classify(make_tensors(p=[0.1, 0.7, 0.2, 1, 0, 0]), labels=LABELS)
    assert list_classes(predictions) == [*LABELLED, ("ant", 1.0), ("bee", 0.0), ("cat", 0.0)]
    predictions = classify(make_tensors(p=[[0.1, 0.9]]))
    assert list_classes(predictions) == [("0", 0.1), ("1", 0.9)]
    assert predictions.flags == ("no_class_labels",)
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
    response = b'{"outputs": [{"name": "p", "data": [0.5, NaN, 1]}]}'
    mapping = OutputMapping(activation="softmax")
    predictions = classify(response, labels=LABELS, mapping=mapping)
    assert list_columns(predictions, "score") == [(None,)] * 3
    assert predictions.flags == ("not_finite",)


BROKEN = '[\n{"label": "cat", "score": 0.9},\n{"label": "do'


def test_text_that_is_broken_json_is_no_label_but_a_bracket_is() -> None:
    for text in (BROKEN, '{"label": "cat"', "[", " [0.1, 0.9", "{'label': 'cat'", '{"name": "x"'):
        for task_type in ("image_classification", "text_classification", "tabular"):
            predictions = read(task_type, make_v2([text]))
            expected = (None, ("response_unreadable",))
            assert (predictions.items, predictions.flags) == expected, (task_type, text)
            predictions = read(task_type, make_v2(["cat", text]))
            assert list_columns(predictions, "label") == [("cat",)], (task_type, text)
            assert predictions.flags == ("elements_unreadable",), (task_type, text)
    data = ["[UNK]", "{other}", "[MASK] x"]
    predictions = classify(make_v2(data))
    assert [label for (label,) in list_columns(predictions, "label")] == data
    assert predictions.flags == ()


def test_common_names_need_no_mapping_and_mix_no_scores() -> None:
    for labels in ("label", "labels", "class", "classes", "Classes"):
        for scores in (
            *("score", "scores", "Score"),
            *("probability", "probabilities", "confidence"),
        ):
            answer = {"embedding": [1, 2, 3, 4], labels: ["bee", "cat"], scores: [[0.6, 0.4]]}
            predictions = classify(make_tensors(**answer))
            assert list_classes(predictions) == [("bee", 0.6), ("cat", 0.4)], (labels, scores)
            assert predictions.flags == (), (labels, scores)
    predictions = classify(make_tensors(label=["bee"], probabilities=[0.1, 0.7, 0.2]))
    assert list_classes(predictions) == [("bee", None)]
    assert predictions.flags == ("tensor_mismatch",)


# Tabular: per output name its values, exactly, or its labels.

ALL = ("output", "output_name", "value", "label")


def _make_response(*outputs: tuple[str, str, str]) -> bytes:
    written = ", ".join(
        f'{{"name": "{name}", "datatype": "{kind}", "shape": [1], "data": {data}}}'
        for name, kind, data in outputs
    )
    return f'{{"outputs": [{written}]}}'.encode()


def test_values_and_labels_per_output_name() -> None:
    predictions = read(
        "tabular",
        _make_response(
            ("price", "FP64", "[12.50, 7]"), ("grade", "BYTES", '["B"]'), ("ok", "BOOL", "[true]")
        ),
    )
    assert list_columns(predictions, *ALL) == [
        (0, "price", Decimal("12.50"), None),
        (0, "price", Decimal(7), None),
        (1, "grade", None, "B"),
        (2, "ok", None, "true"),
    ]
    predictions = read("tabular", _make_response(("id", "UINT64", "[[18446744073709551616.10]]")))
    assert [str(value) for (value,) in list_columns(predictions, "value")] == [
        "18446744073709551616.10"
    ]
    predictions = read("tabular", _make_response(("x", "FP64", "[NaN, 1e999, -Infinity, 1]")))
    assert list_columns(predictions, "value") == [(None,), (None,), (None,), (Decimal(1),)]
    assert predictions.flags == ("not_finite", "number_too_large")
    predictions = read("tabular", make_v2([None, 1]))
    assert list_columns(predictions, "value") == [(Decimal(1),)]
    assert predictions.flags == ("elements_unreadable",)


def test_objects_and_mappings_name_outputs_and_scores() -> None:
    mapping = OutputMapping(labels="predict", class_probabilities="predict_proba")
    response = _make_response(
        ("predict", "INT64", "[1]"), ("predict_proba", "FP64", "[[0.2, 0.8]]")
    )
    predictions = read("tabular", response, labels=("no", "yes"), mapping=mapping)
    assert list_columns(predictions, "output_name", "value", "label", "score") == [
        ("predict", Decimal(1), "yes", None),
        ("predict_proba", None, "no", 0.2),
        ("predict_proba", None, "yes", 0.8),
    ]
    for data in ([{"price": 12.5, "grade": "B"}], [json.dumps({"price": 12.5, "grade": "B"})]):
        assert list_columns(read("tabular_regression", make_v2(data)), *ALL) == [
            (0, "price", Decimal("12.5"), None),
            (0, "grade", None, "B"),
        ]
    predictions = read("tabular", make_v2([{"label": "churn", "score": 0.5}]))
    assert list_columns(predictions, "label", "score") == [("churn", 0.5)]


# Texts: the Hugging Face pipelines' objects, prompts with answers, and Modzy's result format.


def _make_hg(*elements: Any) -> bytes:
    texts = [json.dumps(element) for element in elements]
    return make_v2(texts, parameters={"content_type": "hg_jsonlist"})


class Case(NamedTuple):
    """Answers of a task type, and columns of their predictions."""

    task_type: str
    responses: tuple[bytes, ...]
    columns: str
    rows: list[tuple[Any, ...]]
    flags: tuple[str, ...] = ()


PROMPTS = [
    {"prompt": "what in picture?", "answer": "dogs and cats"},
    {"prompt": "what colors in picture?", "answer": "red blue and green"},
]
TOKENS = [
    {"entity": "B-LOC", "score": 0.9, "index": 4, "word": "Berlin", "start": 10, "end": 16},
    {"entity_group": "PER", "score": 0.8, "word": "Ada", "start": 0, "end": 3},
]
TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
CLASSES = {"result": {"classPredictions": [{"class": "cat", "score": 0.75}]}, "drift": None}
BOX = {"class": "cat", "score": 0.5, "xMin": 1, "xMax": 3, "yMin": 2, "yMax": 5}
IN_MODZYS_FORM = (
    json.dumps(CLASSES).encode(),
    json.dumps({"data": CLASSES}).encode(),
    make_v2([json.dumps(CLASSES)]),
    make_v2([json.dumps({"data": CLASSES})]),
)
UNSTORABLE = tuple(make_v2([{"answer": text, "score": 0.5}]) for text in ("a\0b", "\ud800"))
NO_POSITION = tuple(
    make_v2([{"answer": "x", "start": start, "end": 3}]) for start in (-1, 1.5, 2**31, "1e300")
)
LONG = make_v2(["x" * 70_000])
GENERATION, QUESTION = "text_generation", "question_answering"
DEEP = '{"answer": ' + "[" * 900 + "]" * 900 + "}"
NESTED, CUT = f"[{DEEP}]".encode(), "[" * 128 + '"…"' + "]" * 128
OBJECT = make_v2([{"answer": {"a": [1, None]}}])
CAT: tuple[str, list[tuple[Any, ...]]] = ("label score", [("cat", 0.75)])
# the last is of a conversation's last turn
GENERATED = tuple(
    _make_hg({name: text})
    for name, text in (
        *(("generated_text", "hello"), ("summary_text", "hello"), ("translation_text", "hello")),
        ("generated_text", TURNS),
    )
)
CASES = {
    "the published prompts and answers": Case(
        "IMAGE_TEXT_TO_TEXT",
        (make_v2(PROMPTS), _make_hg(*PROMPTS), make_v2([PROMPTS])),
        "prompt answer rank",
        [(*turn.values(), rank) for rank, turn in enumerate(PROMPTS, 1)],
    ),
    "tokens": Case(
        "token_classification",
        (_make_hg(*TOKENS), _make_hg(TOKENS), make_v2([TOKENS])),
        "label score text start end",
        [("B-LOC", 0.9, "Berlin", 10, 16), ("PER", 0.8, "Ada", 0, 3)],
    ),
    "an answer to a question": Case(
        QUESTION,
        (_make_hg({"score": 0.7, "start": 3, "end": 7, "answer": "blue"}),),
        "answer score start end",
        [("blue", 0.7, 3, 7)],
    ),
    "a generated text": Case(GENERATION, GENERATED, "text", [("hello",)]),
    "a long text": Case(GENERATION, (LONG,), "text", [("x" * 65_536,)], ("text_truncated",)),
    "a text that Postgres cannot hold": Case(
        QUESTION, UNSTORABLE, "answer score", [(None, 0.5)], ("text_unstorable",)
    ),
    "a position that is none": Case(
        QUESTION, NO_POSITION, "start end", [(None, 3)], ("not_a_position",)
    ),
    "an answer that is no text": Case(QUESTION, (OBJECT,), "answer", [('{"a": [1, null]}',)]),
    "an answer that is nested": Case(QUESTION, (NESTED,), "answer", [(CUT,)]),
    "Modzy's classes of images": Case("image_classification", IN_MODZYS_FORM, *CAT),
    "Modzy's classes of texts": Case("text_classification", IN_MODZYS_FORM, *CAT),
    "Modzy's boxes": Case(
        "object_detection",
        (make_v2([json.dumps({"result": {"detections": [BOX]}})]),),
        "label xmin ymax",
        [("cat", 1.0, 5.0)],
    ),
    "a generated text in Modzy's form": Case(
        GENERATION, IN_MODZYS_FORM[2:3], "text", [(json.dumps(CLASSES),)]
    ),
}


def test_the_table() -> None:
    for case, (task_type, responses, columns, rows, flags) in CASES.items():
        for response in responses:
            predictions = read(task_type, response)
            assert list_columns(predictions, *columns.split()) == rows, case
            assert predictions.flags == flags, case


def test_text_stays_text_and_is_cut_at_the_cap() -> None:
    for text in ("two dogs", '{"animals": ["dog"]}', "[1]", '["a"]', "{", ""):
        assert list_columns(read("image_text_to_text", make_v2([text])), "answer") == [(text,)]
        assert list_columns(read("text_generation", make_v2([text])), "text") == [(text,)]
    short = read("text_generation", make_v2(["é" * 9]), caps=PredictionCaps(text_characters=3))
    assert list_columns(short, "text") == [("ééé",)]


def test_what_has_another_shape_is_unknown() -> None:
    for task_type in ("ner", "question_answering", "text_generation"):
        for element in (5, {"weather": "fine"}, None):
            predictions = read(task_type, make_v2([element]))
            assert predictions.items is None, (task_type, element)
            assert predictions.flags == ("response_unreadable",), (task_type, element)
    assert read("ner", f'{{"error": {DEEP}}}'.encode()).flags == ("response_error",)
    for result in (None, 5, {}, {"classPredictions": 5}, [1]):
        predictions = read("image_classification", json.dumps({"result": result}).encode())
        assert predictions.items is None, result
        assert predictions.problem, result
