"""The answers of language models: their choices, the tokens that they cost, and streams.

The chunks of a streamed answer are joined: each choice becomes that of an unstreamed answer, and
typed events (of OpenAI's responses, of Anthropic's messages) the answer that they describe.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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


class Choice(NamedTuple):
    """One choice of an answer."""

    text: str | None
    rest: dict[str, Any]
    """What else it has: `index`, `finish_reason`, `role`, `tool_calls` and so on; without the
    log-probabilities of its tokens, which stay in the answer."""


def list_choices(answer: dict[str, Json]) -> list[Choice]:
    """Return the choices in the order of their indexes: OpenAI's own, embeddings, and those that
    OpenAI's responses and Anthropic's messages are, with their calls of tools in OpenAI's form."""
    items, parts = list_objects(answer.get("output")), list_objects(answer.get("content"))
    if isinstance(answer.get("output"), list):
        said = [part for item in items for part in list_objects(item.get("content"))]
        texts = [part for part in said if part.get("type") == "output_text"]
        calls = [
            _describe_call(item.get("call_id"), item, item.get("arguments"))
            for item in items
            if item.get("type") == "function_call"
        ]
        reason = as_object(answer.get("incomplete_details")).get("reason")
        return [_build_choice("assistant", reason or answer.get("status"), texts, calls)]
    if isinstance(answer.get("content"), list):
        uses = [part for part in parts if part.get("type") == "tool_use"]
        inputs = [it.get("partial_json") or written(it.get("input")).decode() for it in uses]
        calls = [
            _describe_call(it.get("id"), it, text) for it, text in zip(uses, inputs, strict=True)
        ]
        return [_build_choice(answer.get("role"), answer.get("stop_reason"), parts, calls)]
    choices = list_objects(answer.get("choices", answer.get("data")))
    if all(type(choice.get("index")) is int for choice in choices):
        choices.sort(key=lambda choice: int(choice["index"]))
    return [_read_choice(choice) for choice in choices]


def _read_choice(choice: dict[str, Json]) -> Choice:
    rest = {name: choice.get(name) for name in ("index", "finish_reason")}
    message = as_object(choice.get("message"))
    if VECTOR in choice:
        rest[VECTOR] = choice[VECTOR]
    else:
        rest |= {k: v for k, v in message.items() if k != "content" and v is not None}
    return Choice(text_of_parts(choice.get("text", message.get("content"))), rest)


def _build_choice(
    role: Json, reason: Json, content: list[dict[str, Json]], calls: list[dict[str, Any]]
) -> Choice:
    texts = [part for part in content if type(part.get("text")) is str]
    said = {"content": texts or None, "role": role, "tool_calls": calls or None}
    return _read_choice({"index": 0, "finish_reason": reason, "message": said})


def _describe_call(id_: Json, named: dict[str, Json], arguments: Json) -> dict[str, Any]:
    function = {"name": named.get("name"), "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


def text_of_parts(content: Json) -> str | None:
    """Return the text of an answer's content: a string, or parts, some of which have text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in list_objects(content)]
        return "\n".join(text for text in texts if type(text) is str)
    return content if type(content) is str or content is None else write_json(content)


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


def _name_of(call: dict[str, Any]) -> Any:
    return as_object(call.get("function")).get("name")


def _join(delta: dict[str, Json], message: dict[str, Any], levels: int = _MOST_LEVELS) -> None:
    """Join a delta as OpenAI's own clients do: texts are put together, lists are extended."""
    for name, part in delta.items():
        known = message.get(name)
        if isinstance(part, dict) and levels:
            message[name] = known if isinstance(known, dict) else {}
            _join(part, message[name], levels - 1)
        elif name == "tool_calls" and isinstance(part, list):
            message[name] = calls = known if isinstance(known, _Calls) else _Calls()
            for piece in list_objects(part) if levels else ():
                unnumbered = {key: piece[key] for key in piece if key != "index"}
                _join(unnumbered, calls.find(piece), levels - 1)
        elif isinstance(part, list):
            message[name] = known if type(known) is list else []
            message[name].extend(part)
        elif type(part) is str and name not in _ONCE:
            message[name] = known if isinstance(known, _Pieces) else _Pieces()
            message[name].append(part)
        elif part not in (None, "") and not isinstance(part, dict):
            message[name] = part


def _finish(value: Any, levels: int = 2 * _MOST_LEVELS) -> Any:
    if isinstance(value, _Pieces):
        return "".join(value)
    if isinstance(value, dict) and levels:
        return {name: _finish(member, levels - 1) for name, member in value.items()}
    if isinstance(value, _Calls):
        return [_finish(call, levels - 1) for call in value]
    return value


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
        self._text = _Pieces()  # of a response, which its last event has as a whole
        self._choices: dict[int, dict[str, Any]] = {}  # by their index, in pieces
        self._blocks: dict[int, dict[str, Any]] = {}  # of a message's content, in pieces
        for position, data in enumerate(events(stream)):
            if data.strip() == _DONE:
                self._done = True
            else:
                self._add_chunk(Document("response", data).as_json(f"chunk {position}"))
        if self._blocks:
            self.document["content"] = _in_order(self._blocks)
        elif self._text and not self.document.get("output"):
            text = {"type": "output_text", "text": _finish(self._text)}
            self.document["output"] = [{"content": [text]}]
        else:
            self.document["choices"] = _in_order(self._choices)
        reasons = [choice["finish_reason"] for choice in self._choices.values()]
        is_finished = bool(reasons) and all(reasons)
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
                _join(gain, self._blocks.setdefault(_index_of(event), {}))
        self.document |= as_object(event.get("response")) | as_object(event.get("message"))
        self._done |= kind in _LAST

    def _add_choice(self, part: dict[str, Json]) -> None:
        index = _index_of(part)
        choice = self._choices.setdefault(index, {"index": index, "finish_reason": None})
        if part.get("finish_reason") is not None:
            choice["finish_reason"] = part["finish_reason"]
        if type(part.get("text")) is str:
            choice.setdefault("text", _Pieces()).append(part["text"])
        if isinstance(part.get("delta"), dict):
            message = choice.setdefault("message", {"role": None, "content": None})
            _join(part["delta"], message)


def _index_of(part: dict[str, Json]) -> int:
    return part["index"] if type(part.get("index")) is int else 0


def _in_order(parts: dict[int, dict[str, Any]]) -> list[Any]:
    return [_finish(parts[index]) for index in sorted(parts)]
