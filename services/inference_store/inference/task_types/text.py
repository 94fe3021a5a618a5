"""Texts: the Hugging Face pipelines' own objects, and prompts with answers about an image."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from inference_store.inference.json_text import Json

from .response_reading import Reading, Row
from .unwrap import Output, elements

Columns: TypeAlias = Callable[[Json, Reading], Row | None]
_GENERATED: Final = ("generated_text", "summary_text", "translation_text", "text")
_TOKEN: Final = ("entity", "entity_group", "label", "word", "score", "start", "end")
_ANSWER: Final = ("answer", "score", "start", "end")
_PROMPT: Final = ("prompt", "answer")


def _read(
    outputs: list[Output], reading: Reading, *, names: tuple[str, ...], columns: Columns
) -> None:
    for output in outputs:
        for element in elements(output.data, names):
            if reading.full():
                return
            row = columns(element, reading)
            if row is None:
                reading.unreadable += 1
            else:
                placed = {"output": output.position, "output_name": output.name}
                reading.rows.append({**placed, **row})


def _token(element: Json, reading: Reading) -> Row | None:
    if not isinstance(element, dict) or element.keys().isdisjoint(_TOKEN):
        return None
    entity = element.get("entity_group", element.get("entity", element.get("label")))
    return {
        "label": reading.label(entity),
        "text": reading.text(element.get("word")),
        **_read_position(element, reading),
    }


def _answer(element: Json, reading: Reading) -> Row | None:
    if type(element) is str:
        return {"answer": reading.text(element)}
    if not isinstance(element, dict) or "answer" not in element:
        return None
    return {"answer": reading.text(element["answer"]), **_read_position(element, reading)}


def _prompt(element: Json, reading: Reading) -> Row | None:
    if type(element) is str:
        return {"answer": reading.text(element)}
    if not isinstance(element, dict) or element.keys().isdisjoint(_PROMPT):
        return _generated(element, reading)
    return {
        "prompt": reading.text(element.get("prompt")),
        "answer": reading.text(element.get("answer")),
    }


def _generated(element: Json, reading: Reading) -> Row | None:
    if type(element) is str:
        return {"text": reading.text(element)}
    if not isinstance(element, dict):
        return None
    name = next((name for name in _GENERATED if name in element), None)
    if name is None:
        return None
    row: Row = {"text": reading.text(_find_text(element[name]))}
    if "score" in element:
        row["score"] = reading.number(element["score"])
    return row


def _find_text(generated: Json) -> Json:
    """Return the text; the last turn of a conversation."""
    if isinstance(generated, list) and generated:
        generated = generated[-1]
    return generated.get("content") if isinstance(generated, dict) else generated


def _read_position(element: dict[str, Json], reading: Reading) -> Row:
    return {
        "score": reading.number(element.get("score")),
        "start": reading.position(element.get("start")),
        "end": reading.position(element.get("end")),
    }


read_tokens: Final = partial(_read, names=_TOKEN, columns=_token)
read_answers: Final = partial(_read, names=_ANSWER, columns=_answer)
read_prompts: Final = partial(_read, names=(*_PROMPT, *_GENERATED), columns=_prompt)
read_generated: Final = partial(_read, names=_GENERATED, columns=_generated)
