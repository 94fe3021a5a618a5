"""Reads the messages of a chat (their text and their attachments), the tokens that an answer cost,
and streamed answers.

The chunks of a streamed answer are joined: each choice becomes that of an unstreamed answer, and
typed events (of OpenAI's responses, of Anthropic's messages) the answer that they describe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from inference_store.inference.json_text import Json, write_json
from inference_store.proxy.exchange import Exchange, from_base64, from_data_url

from .documents import Document, events, parsed
from .protocol import Problem, unreadable

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
    usage = answer.get("usage")
    if not isinstance(usage, dict):
        return {}
    details = [part for name, part in usage.items() if name.endswith("_details")]
    counts: dict[str, Json] = {}
    for part in (*(part for part in details if isinstance(part, dict)), usage):
        counts |= part
    return {
        name: next(counts[spelling] for spelling in spellings if type(counts.get(spelling)) is int)
        for name, spellings in _COUNTS.items()
        if any(type(counts.get(spelling)) is int for spelling in spellings)
    }


def read_first_token(exchange: Exchange) -> dict[str, Any]:
    """Return the milliseconds from forwarding a call to the first part of its streamed answer."""
    if exchange.forwarded_at is None or exchange.first_part_at is None:
        return {}
    waited = exchange.first_part_at - exchange.forwarded_at
    return {"time_to_first_token_ms": round(waited.total_seconds() * 1000, 3)}


_URLS: Final = ("image_url", "audio_url", "video_url")


Attachment: TypeAlias = tuple[bytes, str | None]
"""The bytes of an image, a sound or a file inside a message, and their content type."""


@dataclass(slots=True)
class Conversation:
    """The messages of a chat, in order."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    """The role and the text of each message; other parts appear in the text as `[image]`."""
    attachments: list[Attachment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, sentence: str) -> None:
        """Add a problem with a part of the request."""
        self.problems.append(unreadable(sentence))

    @property
    def text(self) -> str:
        """The text of a single message; of several, each after its role, with a blank line between
        them."""
        if len(self.turns) == 1:
            return self.turns[0][1]
        return "\n\n".join(f"{role}: {text}" for role, text in self.turns)

    @property
    def prompt(self) -> str | None:
        """The user's last message."""
        return next((text for role, text in reversed(self.turns) if role == "user"), None)


def read_conversation(name: str, messages: Json, system: Json = None) -> Conversation:
    """Read the conversation in the request's member `name`, after what the `system` is told."""
    conversation = Conversation()
    if not isinstance(messages, list):
        conversation.add_problem(f"`{name}` is not a list of {{role, content}}")
        return conversation
    if system:
        texts = _read_content(system, "system", conversation)
        conversation.turns.append(("system", "\n".join(texts)))
    for index, message in enumerate(messages):
        location = f"{name}[{index}]"
        if isinstance(message, dict):
            content = message.get("content", message.get("output"))
            texts = _read_content(content, f"{location}.content", conversation)
            role = message.get("role")
            role = role if type(role) is str and role else "unknown"
            conversation.turns.append((role, "\n".join([*texts, *format_tool_calls(message)])))
        else:
            conversation.add_problem(f"{location} is not an object with role and content")
    return conversation


def text_of_parts(content: Json) -> str | None:
    """Return the text of an answer's content: a string, or parts, some of which have text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if type(text) is str)
    return content if type(content) is str or content is None else write_json(content)


def format_tool_calls(message: dict[str, Json]) -> list[str]:
    """Return the calls of tools and of the older `function_call`, as `name(arguments)`."""
    calls = message.get("tool_calls")
    functions = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict)
    ]
    is_call = message.get("type") == "function_call"
    functions.append(message if is_call else message.get("function_call"))
    return [
        f"{_as_text(function.get('name'))}({_as_text(function.get('arguments') or '')})"
        for function in functions
        if isinstance(function, dict)
    ]


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else write_json(value)


def _read_content(content: Json, location: str, conversation: Conversation) -> list[str]:
    if content is None:
        return []
    if type(content) is str:
        return [content]
    if not isinstance(content, list):
        conversation.add_problem(f"{location} is neither text nor a list of parts")
        return [write_json(content)]
    return [
        _read_part(part, f"{location}[{index}]", conversation) for index, part in enumerate(content)
    ]


def _read_part(part: Json, location: str, conversation: Conversation) -> str:
    if type(part) is str:
        return part
    if not isinstance(part, dict):
        conversation.add_problem(f"{location} is no part with a type")
        return write_json(part)
    for name in ("text", "thinking"):
        if type(part.get(name)) is str:
            return str(part[name])
    if part.get("type") == "tool_use":
        return f"{_as_text(part.get('name'))}({_as_text(part.get('input'))})"
    if part.get("type") == "tool_result":
        return text_of_parts(part.get("content")) or ""
    return _read_attachment(part, location, conversation)


def _read_attachment(part: dict[str, Json], location: str, conversation: Conversation) -> str:
    """Add an attachment, and return the text that replaces it; its bytes stay in the request."""
    kind = part.get("type")
    name = kind if type(kind) is str else "part"
    attachment, address = _find_bytes(name, part.get(name), part)
    if attachment is not None:
        conversation.attachments.append(attachment)
    elif address is not None and address[:5].lower() == "data:":
        conversation.add_problem(f"{location}.{name} is not base64 behind `data:…;base64,`")
    elif address is not None:
        return f"[{name.removesuffix('_url')} {address}]"
    return f"[{name.removesuffix('_url').removeprefix('input_')}]"


def _find_bytes(
    name: str, inside: Json, part: dict[str, Json]
) -> tuple[Attachment | None, str | None]:
    """Return the bytes in a part, or their address: in the member of the part's type, in the part
    itself (OpenAI's responses), or in its `source` (Anthropic)."""
    if name in _URLS or name == "input_image":
        address = part.get("image_url") if name == "input_image" else inside
        return _read_address(address.get("url") if isinstance(address, dict) else address)
    holder = next((it for it in (inside, part.get("source"), part) if isinstance(it, dict)), part)
    if name in ("file", "input_file"):
        return _read_address(holder.get("file_data"))
    if type(holder.get("url")) is str:
        return _read_address(holder["url"])
    data, kind = holder.get("data"), holder.get("media_type")
    if kind is None and type(holder.get("format")) is str:
        kind = f"audio/{holder['format']}"
    raw = from_base64(data) if type(data) is str else None
    return (None if raw is None else (raw, kind if type(kind) is str else None)), None


def _read_address(address: Json) -> tuple[Attachment | None, str | None]:
    if type(address) is not str:
        return None, None
    return from_data_url(address), address


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
    choices = result.choices.values()
    is_finished = bool(choices) and all(choice["finish_reason"] for choice in choices)
    if not result.done and not is_finished and not document.get("error"):
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
