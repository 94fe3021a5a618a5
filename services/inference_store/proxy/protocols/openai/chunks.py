"""Joins the chunks of a streamed answer: each choice becomes that of an unstreamed answer."""

from dataclasses import dataclass, field
from typing import Any, Final

from inference_store.inference.json_text import Json
from inference_store.proxy.protocols.documents import Document, parsed
from inference_store.proxy.protocols.event_stream import events
from inference_store.proxy.protocols.problems import Problem

_DONE: Final = b"[DONE]"
_JOINED: Final = ("content", "refusal", "reasoning_content", "reasoning")
_MOST_TOOL_CALLS: Final = 1024


class _Pieces(list[str]):
    """A text that comes in pieces: joined once, as there can be very many."""


@dataclass(slots=True)
class JoinedStream:
    """The joined chunks of a stream."""

    document: dict[str, Json] = field(default_factory=dict)
    """The members of an unstreamed answer: `id`, `model`, `choices`, `usage`, `error`."""
    chunks: list[Json] = field(default_factory=list)
    """The unchanged chunks, in order; one that is not JSON as `{"unread": text}`."""
    done: bool = False
    problems: list[Problem] = field(default_factory=list)


def join_chunks(stream: Document) -> JoinedStream:
    """Join the chunks of a stream."""
    result = JoinedStream()
    choices: dict[int, dict[str, Any]] = {}
    for position, data in enumerate(events(stream.raw)):
        if data.strip() == _DONE:
            result.done = True
        else:
            _add_chunk(parsed(data, "response", f"chunk {position}"), result, choices)
    result.document["choices"] = [_join_pieces(choices[index]) for index in sorted(choices)]
    if not result.done and not _are_finished(choices) and "error" not in result.document:
        sentence = f"the stream broke off after {len(result.chunks)} chunks"
        result.problems.append(Problem(sentence, ("response", "broken_off")))
    return result


def _add_chunk(chunk: Document, result: JoinedStream, choices: dict[int, dict[str, Any]]) -> None:
    if chunk.problem:
        result.problems.append(chunk.problem)
        result.chunks.append({"unread": chunk.raw.decode("utf-8", "replace")})
        return
    result.chunks.append(chunk.value)
    if not isinstance(chunk.value, dict):
        return
    for name in ("id", "model", "usage", "error"):
        if chunk.value.get(name) is not None:
            result.document[name] = chunk.value[name]
    choice_parts = chunk.value.get("choices")
    for choice in choice_parts if isinstance(choice_parts, list) else []:
        if isinstance(choice, dict):
            _join_choice(choice, choices)


def _join_choice(part: dict[str, Json], choices: dict[int, dict[str, Any]]) -> None:
    index = part.get("index")
    index = index if type(index) is int else 0
    choice = choices.setdefault(index, {"index": index, "finish_reason": None})
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if type(part.get("text")) is str:
        choice.setdefault("text", _Pieces()).append(part["text"])
    delta = part.get("delta")
    if isinstance(delta, dict):
        _join_message(delta, choice.setdefault("message", {"role": None, "content": None}))


def _join_message(delta: dict[str, Json], message: dict[str, Any]) -> None:
    if type(delta.get("role")) is str:
        message["role"] = delta["role"]
    for name in _JOINED:
        if type(delta.get(name)) is str:
            if message.get(name) is None:
                message[name] = _Pieces()
            message[name].append(delta[name])
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict):
            _join_call(call, message.setdefault("tool_calls", []))


def _join_call(part: dict[str, Json], calls: list[dict[str, Any]]) -> None:
    """Join a piece of a call's name and arguments; its index says which call it belongs to."""
    index = part.get("index")
    index = index if type(index) is int and 0 <= index < _MOST_TOOL_CALLS else len(calls)
    while len(calls) <= index:
        calls.append({"function": {"name": _Pieces(), "arguments": _Pieces()}})
    call = calls[index]
    call.update({name: part[name] for name in ("id", "type") if type(part.get(name)) is str})
    function = part.get("function")
    for name in ("name", "arguments"):
        piece = function.get(name) if isinstance(function, dict) else None
        if type(piece) is str:
            call["function"][name].append(piece)


def _join_pieces(value: Any) -> Any:
    """Return a value with its pieces joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _join_pieces(member) for name, member in value.items()}
    return [_join_pieces(item) for item in value] if isinstance(value, list) else value


def _are_finished(choices: dict[int, dict[str, Any]]) -> bool:
    return bool(choices) and all(choice["finish_reason"] for choice in choices.values())
