"""The answers of language models: their choices, the tokens that they cost, and streams.

The chunks of a streamed answer are joined: each choice becomes that of an unstreamed answer, and
typed events (of OpenAI's responses, of Anthropic's messages) the answer that they describe.
"""

from collections.abc import Mapping
from typing import Any, Final

from inference_store.inference.json_text import Json, write_json

from .documents import Document, as_object, events, list_objects, written
from .protocol import Problem

VECTOR: Final = "embedding"
_COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "completion_tokens": ("completion_tokens", "output_tokens"),
    "total_tokens": ("total_tokens",),
    "cached_tokens": ("cached_tokens", "cache_read_input_tokens"),
    "reasoning_tokens": ("reasoning_tokens",),
}
"""Standard metadata, and the names that servers give them, in `usage` or in its `…_details`."""


def read_usage(answer: dict[str, Json]) -> dict[str, Any]:
    """Return the tokens in an answer's `usage`."""
    usage = as_object(answer.get("usage"))
    counts: dict[str, Json] = {}
    for part in (*(usage[name] for name in usage if name.endswith("_details")), usage):
        counts |= as_object(part)
    found = {
        name: [counts[spelling] for spelling in spellings if type(counts.get(spelling)) is int]
        for name, spellings in _COUNTS.items()
    }
    return {name: numbers[0] for name, numbers in found.items() if numbers}


def list_choices(answer: dict[str, Json], name: str) -> list[dict[str, Any]]:
    """Return the choices in the order of their indexes: OpenAI's own, embeddings, and those that
    OpenAI's responses and Anthropic's messages are, with their calls of tools in OpenAI's form.

    Each has its text under `name`, and what else it says: `index`, `finish_reason`, `role`,
    `tool_calls` and so on; without the log-probabilities of its tokens, which stay in the answer.
    """
    output, content = answer.get("output"), answer.get("content")
    if isinstance(output, list):
        items = list_objects(output)
        parts = [part for item in items for part in (item, *list_objects(item.get("content")))]
        reason = as_object(answer.get("incomplete_details")).get("reason") or answer.get("status")
        choices = [_build_choice("assistant", reason, parts)]
    elif isinstance(content, list):
        parts = list_objects(content)
        choices = [_build_choice(answer.get("role"), answer.get("stop_reason"), parts)]
    else:
        choices = list_objects(answer.get("choices", answer.get("data")))
        if all(type(choice.get("index")) is int for choice in choices):
            choices.sort(key=lambda choice: int(choice["index"]))
    return [_read_choice(choice, name) for choice in choices]


def _read_choice(choice: dict[str, Json], name: str) -> dict[str, Any]:
    message = as_object(choice.get("message"))
    read = {name: text_of_parts(choice.get("text", message.get("content")))}
    read |= {name: choice.get(name) for name in ("index", "finish_reason")}
    if VECTOR in choice:
        return {**read, VECTOR: choice[VECTOR]}
    return read | {k: v for k, v in message.items() if k != "content" and v is not None}


def _build_choice(role: Json, reason: Json, parts: list[dict[str, Json]]) -> dict[str, Json]:
    said_in = [part for part in parts if part.get("type", "text") in ("text", "output_text")]
    texts = [part for part in said_in if type(part.get("text")) is str]
    calls = [part for part in parts if part.get("type") in ("function_call", "tool_use")]
    said = {"content": texts or None, "role": role}
    said["tool_calls"] = list(map(_describe_call, calls)) or None
    return {"index": 0, "finish_reason": reason, "message": said}


def _describe_call(call: dict[str, Json]) -> dict[str, Any]:
    arguments = call.get("arguments", call.get("partial_json"))
    if not arguments and "input" in call:
        arguments = written(call["input"]).decode()
    function = {"name": call.get("name"), "arguments": arguments}
    return {"id": call.get("call_id", call.get("id")), "type": "function", "function": function}


def text_of_parts(content: Json) -> str | None:
    """Return the text of an answer's content: a string, or parts, some of which have text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in list_objects(content)]
        return "\n".join(text for text in texts if type(text) is str)
    return content if type(content) is str or content is None else write_json(content)


_ONCE: Final = ("id", "role", "type", "finish_reason")
"""Texts that come whole, and may come again."""
_MOST_LEVELS: Final = 8
"""The most nested objects of a delta that are joined; deeper ones stay in the chunks."""


def _join(pieces: list[dict[str, Json]], levels: int = _MOST_LEVELS) -> dict[str, Any]:
    """Join the pieces of an object as OpenAI's own clients do: texts are put together, lists are
    extended; of other values the last one counts."""
    parts: dict[str, list[Any]] = {}
    for piece in pieces:
        for name, part in piece.items():
            is_empty = part is None or (part == "" and name in _ONCE)
            if not is_empty and (levels or not isinstance(part, dict)):
                parts.setdefault(name, []).append(part)
    return {name: _join_parts(name, parts[name], levels) for name in parts}


def _join_parts(name: str, parts: list[Json], levels: int) -> Any:
    last = parts[-1]
    if isinstance(last, dict):
        return _join(list_objects(parts), levels - 1)
    if isinstance(last, list):
        items = [item for part in parts if isinstance(part, list) for item in part]
        calls = _group_calls(list_objects(items)) if name == "tool_calls" and levels else []
        return [_join(call, levels - 1) for call in calls] if name == "tool_calls" else items
    if type(last) is str and name not in _ONCE:
        return "".join(part for part in parts if type(part) is str)
    return last


def _group_calls(pieces: list[dict[str, Json]]) -> list[list[dict[str, Json]]]:
    """Return the pieces of each call of a tool, in the order in which the calls began. A piece
    belongs to the call of its `index`, else of its `id`. One without both goes on with the last
    call, unless both name a function."""
    calls: list[dict[str, Any]] = []
    by_key: dict[Any, dict[str, Any]] = {}
    for piece in pieces:
        id_, name = piece.get("id") or None, as_object(piece.get("function")).get("name") or None
        keys = [key for key in (piece.get("index"), id_) if type(key) in (int, str) and key != ""]
        call = by_key.get(keys[0]) if keys else calls[-1] if calls else None
        known = call and call["id" if keys else "name"]
        if call is None or (known and (id_ not in (None, known) if keys else name)):
            calls.append(call := {"id": None, "name": None, "pieces": []})
        call["id"], call["name"] = call["id"] or id_, call["name"] or name
        call["pieces"].append({key: piece[key] for key in piece if key != "index"})
        by_key |= dict.fromkeys(keys, call)
    return [call["pieces"] for call in calls]


_DONE: Final = b"[DONE]"
_LAST: Final = ("message_stop", "response.completed", "response.failed", "response.incomplete")
"""The types of the last event."""


class JoinedStream:
    """The joined chunks of a stream."""

    def __init__(self, stream: bytes) -> None:
        self.document: dict[str, Json] = {}
        """The members of an unstreamed answer: `id`, `model`, `choices`, `usage`, `error`."""
        self.chunks: list[Json] = []
        """The unchanged chunks, in order; one that is not JSON as `{"unread": text}`."""
        self.problems: list[Problem] = []
        self._done = False
        self._text: list[str] = []  # of a response, which its last event has as a whole
        self._choices: dict[int, list[dict[str, Json]]] = {}  # the pieces of each, by its index
        self._blocks: dict[int, list[dict[str, Json]]] = {}  # of a message's content
        for position, data in enumerate(events(stream)):
            if data.strip() == _DONE:
                self._done = True
            else:
                self._add_chunk(Document("response", data).as_json(f"chunk {position}"))
        choices = [_join(self._choices[index]) for index in sorted(self._choices)]
        if self._blocks:
            self.document["content"] = [_join(self._blocks[at]) for at in sorted(self._blocks)]
        elif self._text and not self.document.get("output"):
            text = {"type": "output_text", "text": "".join(self._text)}
            self.document["output"] = [{"content": [text]}]
        else:
            self.document["choices"] = choices
        is_finished = bool(choices) and all(choice.get("finish_reason") for choice in choices)
        if not self._done and not is_finished and not self.document.get("error"):
            sentence = f"the stream broke off after {len(self.chunks)} chunks"
            self.problems.append(Problem(sentence, ("response", "broken_off")))

    def _add_chunk(self, chunk: Document) -> None:
        if chunk.problem:
            self.problems.append(chunk.problem)
            self.chunks.append({"unread": chunk.raw.decode("utf-8", "replace")})
            return
        self.chunks.append(chunk.value)
        for name in ("id", "model", "usage", "error"):
            known, part = self.document.get(name), chunk.members.get(name)
            if name == "usage" and isinstance(known, dict) and isinstance(part, dict):
                part = known | part
            if part is not None:
                self.document[name] = part
        if type(chunk.members.get("type")) is str:
            self._add_event(chunk.members["type"], chunk.members)
        for choice in list_objects(chunk.members.get("choices")):
            self._add_choice(choice)

    def _add_event(self, kind: str, event: dict[str, Json]) -> None:
        """Add a typed event: an answer as it is by now, or what a block or a text gains."""
        delta = event.get("delta")
        if kind == "error":
            self.document.setdefault("error", event)
        elif kind == "message_delta":
            self.document |= as_object(delta)
        elif kind == "response.output_text.delta" and type(delta) is str:
            self._text.append(delta)
        elif kind.startswith("content_block_"):
            part = event.get("content_block", delta)
            if isinstance(part, dict):
                is_start = "content_block" in event
                gain = {name: part[name] for name in part if is_start or name != "type"}
                self._blocks.setdefault(_index_of(event), []).append(gain)
        self.document |= as_object(event.get("response")) | as_object(event.get("message"))
        self._done |= kind in _LAST

    def _add_choice(self, part: dict[str, Json]) -> None:
        index = _index_of(part)
        piece = {"index": index, "finish_reason": part.get("finish_reason")}
        if type(part.get("text")) is str:
            piece["text"] = part["text"]
        if isinstance(part.get("delta"), dict):
            piece["message"] = part["delta"]
        self._choices.setdefault(index, []).append(piece)


def _index_of(part: dict[str, Json]) -> int:
    return part["index"] if type(part.get("index")) is int else 0
