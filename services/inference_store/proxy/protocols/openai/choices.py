"""Finds the choices of an answer: OpenAI's own, embeddings, and those that OpenAI's responses and
Anthropic's messages are, with their calls of tools in OpenAI's form."""

from collections.abc import Iterable
from typing import Any

from inference_store.inference.json_text import Json
from inference_store.proxy.protocols.documents import written


def list_choices(document: Json) -> list[dict[str, Any]]:
    """Return the choices, in the order of their indexes if they have any."""
    answer = document if isinstance(document, dict) else {}
    if isinstance(answer.get("output"), list):
        return [_from_response(answer, _objects(answer["output"]))]
    if isinstance(answer.get("content"), list):
        return [_from_message(answer, _objects(answer["content"]))]
    choices = _objects(answer.get("choices", answer.get("data")))
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: int(choice["index"]))
    return choices


def _from_response(answer: dict[str, Json], items: list[dict[str, Json]]) -> dict[str, Any]:
    parts = [part for item in items for part in _objects(item.get("content"))]
    calls = [
        _describe_call(item.get("call_id"), item, item.get("arguments"))
        for item in items
        if item.get("type") == "function_call"
    ]
    incomplete = answer.get("incomplete_details")
    reason = incomplete.get("reason") if isinstance(incomplete, dict) else None
    texts = [part for part in parts if part.get("type") == "output_text"]
    return _build_choice("assistant", reason or answer.get("status"), texts, calls)


def _from_message(answer: dict[str, Json], parts: list[dict[str, Json]]) -> dict[str, Any]:
    calls = [
        _describe_call(
            part.get("id"), part, part.get("partial_json") or written(part.get("input")).decode()
        )
        for part in parts
        if part.get("type") == "tool_use"
    ]
    return _build_choice(answer.get("role"), answer.get("stop_reason"), parts, calls)


def _build_choice(
    role: Json, reason: Json, content: list[dict[str, Json]], calls: list[dict[str, Any]]
) -> dict[str, Any]:
    texts = [part for part in content if type(part.get("text")) is str]
    said = {"role": role, "content": texts or None, "tool_calls": calls or None}
    return {"index": 0, "finish_reason": reason, "message": said}


def _describe_call(id_: Json, named: dict[str, Json], arguments: Json) -> dict[str, Any]:
    function = {"name": named.get("name"), "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def _objects(value: Json) -> list[dict[str, Json]]:
    items: Iterable[Json] = value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict)]
