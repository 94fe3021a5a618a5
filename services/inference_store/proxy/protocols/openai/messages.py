"""The messages of a chat: their text, and what else is in them."""

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
    """What was said, in order."""

    turns: list[tuple[str, str]] = field(default_factory=list)
    """Role and text of each message; what is no text stands in it as `[image]`."""
    attachments: list[Attachment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, sentence: str) -> None:
        """A part of the request is not as it should be."""
        self.problems.append(Problem(sentence, ("request", "unreadable")))

    @property
    def text(self) -> str:
        """A sole message's text; of several, each after its role, a blank line between them."""
        if len(self.turns) == 1:
            return self.turns[0][1]
        return "\n\n".join(f"{role}: {text}" for role, text in self.turns)

    @property
    def prompt(self) -> str | None:
        """The user's last message."""
        return next((text for role, text in reversed(self.turns) if role == "user"), None)


def conversation_of(messages: Json) -> Conversation:
    """Everything that is said in `messages`."""
    found = Conversation()
    if not isinstance(messages, list):
        found.add_problem("`messages` is not a list of {role, content}")
        return found
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if isinstance(message, dict):
            said = _content(message.get("content"), f"{place}.content", found)
            found.turns.append((_role(message), "\n".join([*said, *called_tools(message)])))
        else:
            found.add_problem(f"{place} is not an object with role and content")
    return found


def text_of_parts(content: Json) -> str | None:
    """The text of an answer's content: a string, or parts of which some have text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if type(text) is str)
    return content if type(content) is str or content is None else write_json(content)


def called_tools(message: dict[str, Json]) -> list[str]:
    """The calls of tools in a message, as `name(arguments)`."""
    calls = message.get("tool_calls")
    functions = [
        call.get("function")
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict)
    ]
    return [
        f"{_text(each.get('name'))}({_text(each.get('arguments') or '')})"
        for each in functions
        if isinstance(each, dict)
    ]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else write_json(value)


def _role(message: dict[str, Json]) -> str:
    role = message.get("role")
    return role if type(role) is str and role else "unknown"


def _content(content: Json, place: str, found: Conversation) -> list[str]:
    if content is None:
        return []
    if type(content) is str:
        return [content]
    if not isinstance(content, list):
        found.add_problem(f"{place} is neither text nor a list of parts")
        return [write_json(content)]
    return [_part(part, f"{place}[{index}]", found) for index, part in enumerate(content)]


def _part(part: Json, place: str, found: Conversation) -> str:
    if type(part) is str:
        return part
    if not isinstance(part, dict):
        found.add_problem(f"{place} is no part with a type")
        return write_json(part)
    if type(part.get("text")) is str:
        return str(part["text"])
    return _attached(part, place, found)


def _attached(part: dict[str, Json], place: str, found: Conversation) -> str:
    """What stands for the part in the text; its bytes are kept where they are in the request."""
    kind = part.get("type")
    name = kind if type(kind) is str else "part"
    inside = part.get(name)
    attachment, address = _bytes_of(name, inside)
    if attachment is not None:
        found.attachments.append(attachment)
    elif address is not None and address[:5].lower() == "data:":
        found.add_problem(f"{place}.{name} is not base64 behind `data:…;base64,`")
    elif address is not None:
        return f"[{name.removesuffix('_url')} {address}]"
    return f"[{name.removesuffix('_url').removeprefix('input_')}]"


def _bytes_of(name: str, inside: Json) -> tuple[Attachment | None, str | None]:
    """The bytes in a part, or the address where they are."""
    if name in _URLS:
        address = inside.get("url") if isinstance(inside, dict) else inside
        return _in_address(address)
    if not isinstance(inside, dict):
        return None, None
    if name == "file":
        return _in_address(inside.get("file_data"))
    data, kind = inside.get("data"), inside.get("format")
    raw = from_base64(data) if type(data) is str else None
    if raw is None:
        return None, None
    return Attachment(raw, f"audio/{kind}" if type(kind) is str else None), None


def _in_address(address: Json) -> tuple[Attachment | None, str | None]:
    if type(address) is not str:
        return None, None
    found = from_data_url(address)
    return (Attachment(*found) if found else None), address
