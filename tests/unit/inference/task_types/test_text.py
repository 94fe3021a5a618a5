"""Texts: the Hugging Face pipelines' objects, and prompts with answers."""

import json
from typing import Any

import pytest

from inference_store.inference.task_types import PredictionCaps

from .answers import list_columns, make_v2, read


def _make_hg(*elements: Any) -> bytes:
    return make_v2(
        [json.dumps(element) for element in elements], parameters={"content_type": "hg_jsonlist"}
    )


def test_the_published_prompts_and_answers() -> None:
    data = [
        {"prompt": "what in picture?", "answer": "dogs and cats"},
        {"prompt": "what colors in picture?", "answer": "red blue and green"},
    ]
    for response in (make_v2(data), _make_hg(*data), make_v2([data])):
        predictions = read("IMAGE_TEXT_TO_TEXT", response)
        assert list_columns(predictions, "prompt", "answer", "rank") == [
            ("what in picture?", "dogs and cats", 1),
            ("what colors in picture?", "red blue and green", 2),
        ]


@pytest.mark.parametrize("text", ["two dogs", '{"animals": ["dog"]}', "[1]", '["a"]', "{", ""])
def test_an_answer_that_is_text_stays_text_even_when_it_is_json(text: str) -> None:
    assert list_columns(read("image_text_to_text", make_v2([text])), "answer") == [(text,)]
    assert list_columns(read("text_generation", make_v2([text])), "text") == [(text,)]


def test_tokens() -> None:
    tokens = [
        {"entity": "B-LOC", "score": 0.9, "index": 4, "word": "Berlin", "start": 10, "end": 16},
        {"entity_group": "PER", "score": 0.8, "word": "Ada", "start": 0, "end": 3},
    ]
    for response in (_make_hg(*tokens), _make_hg(tokens), make_v2([tokens])):
        predictions = read("token_classification", response)
        assert list_columns(predictions, "label", "score", "text", "start", "end") == [
            ("B-LOC", 0.9, "Berlin", 10, 16),
            ("PER", 0.8, "Ada", 0, 3),
        ]


def test_question_answering() -> None:
    predictions = read(
        "question_answering", _make_hg({"score": 0.7, "start": 3, "end": 7, "answer": "blue"})
    )
    assert list_columns(predictions, "answer", "score", "start", "end") == [("blue", 0.7, 3, 7)]


@pytest.mark.parametrize("name", ["generated_text", "summary_text", "translation_text"])
def test_generation(name: str) -> None:
    assert list_columns(read("text_generation", _make_hg({name: "hello"})), "text") == [("hello",)]


def test_a_conversation_is_its_last_turn() -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    predictions = read("text_generation", _make_hg({"generated_text": turns}))
    assert list_columns(predictions, "text") == [("hello",)]


def test_long_texts_are_cut_and_flagged() -> None:
    predictions = read("text_generation", make_v2(["x" * 70_000]))
    assert list_columns(predictions, "text") == [("x" * 65_536,)]
    assert predictions.flags == ("text_truncated",)
    short = read("text_generation", make_v2(["é" * 9]), caps=PredictionCaps(text_characters=3))
    assert list_columns(short, "text") == [("ééé",)]


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_postgres_cannot_hold_is_unknown_and_flagged(text: str) -> None:
    predictions = read("question_answering", make_v2([{"answer": text, "score": 0.5}]))
    assert list_columns(predictions, "answer", "score") == [(None, 0.5)]
    assert predictions.flags == ("text_unstorable",)


@pytest.mark.parametrize("start", [-1, 1.5, 2**31, "1e300"])
def test_positions_that_are_none_are_unknown_and_flagged(start: Any) -> None:
    predictions = read("question_answering", make_v2([{"answer": "x", "start": start, "end": 3}]))
    assert list_columns(predictions, "start", "end") == [(None, 3)]
    assert predictions.flags == ("not_a_position",)


@pytest.mark.parametrize("task_type", ["ner", "question_answering", "text_generation"])
@pytest.mark.parametrize("data", [[5], [{"weather": "fine"}], [None]])
def test_elements_of_another_shape_make_it_unknown(task_type: str, data: Any) -> None:
    predictions = read(task_type, make_v2(data))
    assert predictions.items is None
    assert predictions.flags == ("response_unreadable",)


def test_an_answer_that_is_no_text_is_its_json() -> None:
    assert list_columns(
        read("question_answering", make_v2([{"answer": {"a": [1, None]}}])), "answer"
    ) == [('{"a": [1, null]}',)]
    deep = '{"answer": ' + "[" * 900 + "]" * 900 + "}"
    [(answer,)] = list_columns(read("question_answering", f"[{deep}]".encode()), "answer")
    assert answer == "[" * 128 + '"…"' + "]" * 128
    assert read("ner", f'{{"error": {deep}}}'.encode()).flags == ("response_error",)
