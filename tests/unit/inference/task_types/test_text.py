"""Texts: the Hugging Face pipelines' objects, prompts with answers, and Modzy's result format."""

import json
from typing import Any, NamedTuple

from inference_store.inference.task_types import PredictionCaps

from .answers import list_columns, make_v2, read


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


def test_an_answer_that_is_text_stays_text_even_when_it_is_json() -> None:
    for text in ("two dogs", '{"animals": ["dog"]}', "[1]", '["a"]', "{", ""):
        assert list_columns(read("image_text_to_text", make_v2([text])), "answer") == [(text,)]
        assert list_columns(read("text_generation", make_v2([text])), "text") == [(text,)]


def test_texts_are_cut_at_the_cap() -> None:
    short = read("text_generation", make_v2(["é" * 9]), caps=PredictionCaps(text_characters=3))
    assert list_columns(short, "text") == [("ééé",)]


def test_elements_of_another_shape_make_it_unknown() -> None:
    for task_type in ("ner", "question_answering", "text_generation"):
        for element in (5, {"weather": "fine"}, None):
            predictions = read(task_type, make_v2([element]))
            assert predictions.items is None, (task_type, element)
            assert predictions.flags == ("response_unreadable",), (task_type, element)
    assert read("ner", f'{{"error": {DEEP}}}'.encode()).flags == ("response_error",)


def test_other_results_in_modzys_form_have_no_predictions() -> None:
    for result in (None, 5, {}, {"classPredictions": 5}, [1]):
        predictions = read("image_classification", json.dumps({"result": result}).encode())
        assert predictions.items is None, result
        assert predictions.problem, result
