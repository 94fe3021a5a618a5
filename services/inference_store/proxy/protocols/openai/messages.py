"""Reads the messages of a chat: their text and their attachments."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from inference_store.inference.json_text import Json, write_json
from inference_store.proxy.base64_text import from_base64, from_data_url
from inference_store.proxy.protocols.problems import Problem

_URLS: Final = ("image_url", "audio_url", "video_url")


class Attachment(NamedTuple):
    """An image, a sound or a file inside a message."""

    data: bytes
    content_type: str | None


@dataclass(slots=True)
class Conversation:
    """The messages of a chat, in order."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    """The role and the text of each message; other parts appear in the text as `[image]`."""
    attachments: list[Attachment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, sentence: str) -> None:
        """Add a problem with a part of the request."""
        self.problems.append(Problem(sentence, ("request", "unreadable")))

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
            conversation.turns.append(
                (_read_role(message), "\n".join([*texts, *format_tool_calls(message)]))
            )
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


def _read_role(message: dict[str, Json]) -> str:
    role = message.get("role")
    return role if type(role) is str and role else "unknown"


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
    return (None if raw is None else Attachment(raw, kind if type(kind) is str else None)), None


def _read_address(address: Json) -> tuple[Attachment | None, str | None]:
    if type(address) is not str:
        return None, None
    decoded = from_data_url(address)
    return (Attachment(*decoded) if decoded else None), address
