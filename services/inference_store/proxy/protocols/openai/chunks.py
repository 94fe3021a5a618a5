"""Joins the chunks of a streamed answer: each choice becomes that of an unstreamed answer."""

from dataclasses import dataclass, field
from typing import Any, Final

from inference_store.inference.json_text import Json
from inference_store.proxy.protocols.documents import Document, parsed
from inference_store.proxy.protocols.event_stream import events
from inference_store.proxy.protocols.problems import Problem

_DONE: Final = b"[DONE]"
_ONCE: Final = ("id", "role", "type")
"""Texts that come whole, and may come again."""
_MOST_LEVELS: Final = 8
"""The most nested objects of a delta that are joined; deeper ones stay in the chunks."""


class _Pieces(list[str]):
    """A text that comes in pieces: joined once, as there can be very many."""


class _Calls(list[dict[str, Any]]):
    """The calls of tools, in the order in which they began."""

    def __init__(self) -> None:
        super().__init__()
        self._by_key: dict[Any, dict[str, Any]] = {}

    def find(self, part: dict[str, Json]) -> dict[str, Any]:
        """Return the call that a piece belongs to: the one of its `index`, else of its `id`. A
        piece without both goes on with the last call, unless both name a function."""
        keys = [key for key in (part.get("index"), part.get("id")) if type(key) in (int, str)]
        keys = [key for key in keys if key != ""]
        call = self._by_key.get(keys[0]) if keys else self[-1] if self else None
        is_another = call is not None and (
            "id" in call and part.get("id", call["id"]) not in (call["id"], "", None)
            if keys
            else _name_of(call) and _name_of(part)
        )
        if call is None or is_another:
            self.append(call := {})
        self._by_key |= dict.fromkeys(keys, call)
        return call


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


def _join_message(
    delta: dict[str, Json], message: dict[str, Any], levels: int = _MOST_LEVELS
) -> None:
    """Join a delta as OpenAI's own clients do: texts are put together, lists are extended."""
    for name, part in delta.items():
        known = message.get(name)
        if isinstance(part, dict) and levels:
            message[name] = known if isinstance(known, dict) else {}
            _join_message(part, message[name], levels - 1)
        elif name == "tool_calls" and isinstance(part, list):
            message[name] = known if isinstance(known, _Calls) else _Calls()
            for piece in part if levels else ():
                if isinstance(piece, dict):
                    unnumbered = {key: piece[key] for key in piece if key != "index"}
                    _join_message(unnumbered, message[name].find(piece), levels - 1)
        elif isinstance(part, list):
            message[name] = known if type(known) is list else []
            message[name].extend(part)
        elif type(part) is str and name not in _ONCE:
            message[name] = known if isinstance(known, _Pieces) else _Pieces()
            message[name].append(part)
        elif part not in (None, "") and not isinstance(part, dict):
            message[name] = part


def _name_of(call: dict[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _join_pieces(value: Any, levels: int = 2 * _MOST_LEVELS) -> Any:
    """Return a value with its pieces joined."""
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict) and levels:
        return {name: _join_pieces(member, levels - 1) for name, member in value.items()}
    if isinstance(value, _Calls):
        return [_join_pieces(call, levels - 1) for call in value]
    return value


def _are_finished(choices: dict[int, dict[str, Any]]) -> bool:
    return bool(choices) and all(choice["finish_reason"] for choice in choices.values())
