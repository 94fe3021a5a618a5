"""Joins the chunks of a streamed answer: each choice becomes that of an unstreamed answer, and
typed events (of OpenAI's responses, of Anthropic's messages) the answer that they describe."""

from dataclasses import dataclass, field
from typing import Any, Final

from inference_store.inference.json_text import Json
from inference_store.proxy.protocols.documents import Document, parsed
from inference_store.proxy.protocols.event_stream import events
from inference_store.proxy.protocols.problems import Problem

_ONCE: Final = ("id", "role", "type")
"""Texts that come whole, and may come again."""
_MOST_LEVELS: Final = 8
"""The most nested objects of a delta that are joined; deeper ones stay in the chunks."""


class Pieces(list[str]):
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


def join_delta(delta: dict[str, Json], message: dict[str, Any], levels: int = _MOST_LEVELS) -> None:
    """Join a delta as OpenAI's own clients do: texts are put together, lists are extended."""
    for name, part in delta.items():
        known = message.get(name)
        if isinstance(part, dict) and levels:
            message[name] = known if isinstance(known, dict) else {}
            join_delta(part, message[name], levels - 1)
        elif name == "tool_calls" and isinstance(part, list):
            message[name] = known if isinstance(known, _Calls) else _Calls()
            for piece in part if levels else ():
                if isinstance(piece, dict):
                    unnumbered = {key: piece[key] for key in piece if key != "index"}
                    join_delta(unnumbered, message[name].find(piece), levels - 1)
        elif isinstance(part, list):
            message[name] = known if type(known) is list else []
            message[name].extend(part)
        elif type(part) is str and name not in _ONCE:
            message[name] = known if isinstance(known, Pieces) else Pieces()
            message[name].append(part)
        elif part not in (None, "") and not isinstance(part, dict):
            message[name] = part


def _name_of(call: dict[str, Any]) -> Any:
    function = call.get("function")
    return function.get("name") if isinstance(function, dict) else None


def join_pieces(value: Any, levels: int = 2 * _MOST_LEVELS) -> Any:
    """Return a value with its pieces joined."""
    if isinstance(value, Pieces):
        return "".join(value)
    if isinstance(value, dict) and levels:
        return {name: join_pieces(member, levels - 1) for name, member in value.items()}
    if isinstance(value, _Calls):
        return [join_pieces(call, levels - 1) for call in value]
    return value


_DONE: Final = b"[DONE]"
_LAST: Final = ("message_stop", "response.completed", "response.failed", "response.incomplete")
"""The types of the last event."""


@dataclass(slots=True)
class JoinedStream:
    """The joined chunks of a stream."""

    document: dict[str, Json] = field(default_factory=dict)
    """The members of an unstreamed answer: `id`, `model`, `choices`, `usage`, `error`."""
    chunks: list[Json] = field(default_factory=list)
    """The unchanged chunks, in order; one that is not JSON as `{"unread": text}`."""
    done: bool = False
    problems: list[Problem] = field(default_factory=list)
    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By their index, in pieces."""
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The blocks of a message's content, in pieces."""
    text: Pieces = field(default_factory=Pieces)
    """The text of a response, which its last event has as a whole."""


def join_chunks(stream: Document) -> JoinedStream:
    """Join the chunks of a stream."""
    result = JoinedStream()
    for position, data in enumerate(events(stream.raw)):
        if data.strip() == _DONE:
            result.done = True
        else:
            _add_chunk(parsed(data, "response", f"chunk {position}"), result)
    document = result.document
    if result.blocks:
        document["content"] = [join_pieces(result.blocks[index]) for index in sorted(result.blocks)]
    elif result.text and not document.get("output"):
        text = {"type": "output_text", "text": join_pieces(result.text)}
        document["output"] = [{"content": [text]}]
    else:
        indexes = sorted(result.choices)
        document["choices"] = [join_pieces(result.choices[index]) for index in indexes]
    if not result.done and not _are_finished(result.choices) and not document.get("error"):
        sentence = f"the stream broke off after {len(result.chunks)} chunks"
        result.problems.append(Problem(sentence, ("response", "broken_off")))
    return result


def _add_chunk(chunk: Document, result: JoinedStream) -> None:
    if chunk.problem:
        result.problems.append(chunk.problem)
        result.chunks.append({"unread": chunk.raw.decode("utf-8", "replace")})
        return
    result.chunks.append(chunk.value)
    if not isinstance(chunk.value, dict):
        return
    for name in ("id", "model", "usage", "error"):
        if chunk.value.get(name) is not None:
            known, part = result.document.get(name), chunk.value[name]
            if name == "usage" and isinstance(known, dict) and isinstance(part, dict):
                part = known | part
            result.document[name] = part
    choice_parts = chunk.value.get("choices")
    if type(chunk.value.get("type")) is str:
        _add_event(chunk.value["type"], chunk.value, result)
    for choice in choice_parts if isinstance(choice_parts, list) else []:
        if isinstance(choice, dict):
            _join_choice(choice, result.choices)


def _add_event(kind: str, event: dict[str, Json], result: JoinedStream) -> None:
    """Add a typed event: an answer as it is by now, or what a block or a text gains."""
    delta, document = event.get("delta"), result.document
    if kind == "error":
        document.setdefault("error", event)
    elif kind == "message_delta" and isinstance(delta, dict):
        document |= delta
    elif kind == "response.output_text.delta" and type(delta) is str:
        result.text.append(delta)
    elif kind.startswith("content_block_"):
        part = event.get("content_block", delta)
        if isinstance(part, dict):
            index = event["index"] if type(event.get("index")) is int else 0
            is_start = "content_block" in event
            gain = {name: part[name] for name in part if is_start or name != "type"}
            join_delta(gain, result.blocks.setdefault(index, {}))
    for answer in (event.get("response"), event.get("message")):
        document |= answer if isinstance(answer, dict) else {}
    result.done |= kind in _LAST


def _join_choice(part: dict[str, Json], choices: dict[int, dict[str, Any]]) -> None:
    index = part.get("index")
    index = index if type(index) is int else 0
    choice = choices.setdefault(index, {"index": index, "finish_reason": None})
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    if type(part.get("text")) is str:
        choice.setdefault("text", Pieces()).append(part["text"])
    delta = part.get("delta")
    if isinstance(delta, dict):
        join_delta(delta, choice.setdefault("message", {"role": None, "content": None}))


def _are_finished(choices: dict[int, dict[str, Any]]) -> bool:
    return bool(choices) and all(choice["finish_reason"] for choice in choices.values())
