"""The chunks of a streamed answer joined: each choice as if it had come at once."""

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
class Joined:
    """A stream, read."""

    document: dict[str, Json] = field(default_factory=dict)
    """The same as an answer that came at once: `id`, `model`, `choices`, `usage`, `error`."""
    chunks: list[Json] = field(default_factory=list)
    """As they came, in order; one that is no JSON as `{"unread": text}`."""
    done: bool = False
    problems: list[Problem] = field(default_factory=list)


def joined(stream: Document) -> Joined:
    """The chunks of a stream put together."""
    found = Joined()
    choices: dict[int, dict[str, Any]] = {}
    for position, data in enumerate(events(stream.raw)):
        if data.strip() == _DONE:
            found.done = True
        else:
            _add(parsed(data, "response", f"chunk {position}"), found, choices)
    found.document["choices"] = [_whole(choices[index]) for index in sorted(choices)]
    if not found.done and not _finished(choices) and "error" not in found.document:
        sentence = f"the stream broke off after {len(found.chunks)} chunks"
        found.problems.append(Problem(sentence, ("response", "broken_off")))
    return found


def _add(chunk: Document, found: Joined, choices: dict[int, dict[str, Any]]) -> None:
    if chunk.problem:
        found.problems.append(chunk.problem)
        found.chunks.append({"unread": chunk.raw.decode("utf-8", "replace")})
        return
    found.chunks.append(chunk.value)
    if not isinstance(chunk.value, dict):
        return
    for name in ("id", "model", "usage", "error"):
        if chunk.value.get(name) is not None:
            found.document[name] = chunk.value[name]
    several = chunk.value.get("choices")
    for choice in several if isinstance(several, list) else []:
        if isinstance(choice, dict):
            _join(choice, choices)


def _join(part: dict[str, Json], choices: dict[int, dict[str, Any]]) -> None:
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
    """Name and arguments of a call come in pieces; its index says which call a piece is of."""
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


def _whole(value: Any) -> Any:
    """The same with its pieces joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    return [_whole(each) for each in value] if isinstance(value, list) else value


def _finished(choices: dict[int, dict[str, Any]]) -> bool:
    return bool(choices) and all(choice["finish_reason"] for choice in choices.values())
