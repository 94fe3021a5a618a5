"""Reads a request: its data, the model, and whether the answer is a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from inference_store.inference.json_text import Json
from inference_store.proxy.protocols.documents import (
    JSON,
    Document,
    data_at,
    data_of,
    elements,
    member,
    written,
)
from inference_store.proxy.protocols.problems import Problem, join_problems

from .messages import read_conversation

Datum: TypeAlias = tuple[bytes, str | None]
"""The bytes of a datum and its content type."""
_INPUTS: Final = ("messages", "prompt", "input")
_NO_INPUT: Final = "the request has neither `messages` nor a `prompt` nor an `input`"
_NOT_AN_OBJECT: Final = "the request is not a JSON object with messages or a prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A parsed request."""

    data: Sequence[Datum] = field(repr=False)
    """At least one; several only for a list of prompts."""
    together: Datum = field(repr=False)
    """All data as one datum."""
    attached: bool = False
    """True if the datum is an image, a sound or a file in the messages."""
    prompt: str | None = None
    """The user's last message."""
    model: str | None = None
    stream: bool = False
    metadata: bytes | None = None
    """OpenAI's own `metadata`, as an envelope."""
    problem: Problem | None = None

    @property
    def is_image(self) -> bool:
        """True if the datum is an image."""
        kind = self.together[1]
        return self.attached and kind is not None and kind.startswith("image/")


def parse_request(request: Document) -> ParsedRequest:
    """Parse a request; an unreadable one is one datum."""
    document = request.value
    if not isinstance(document, dict):
        return _build_single(
            request.raw, None, request.problem or _describe_no_input(_NOT_AN_OBJECT)
        )
    name = next((name for name in _INPUTS if document.get(name) is not None), None)
    is_chat = name == "messages" or (name == "input" and _has_objects(document[name]))
    parse = _parse_chat if is_chat else _parse_completion
    return replace(
        parse(document, request.raw, name or ""),
        model=_text(document.get("model")),
        stream=document.get("stream") is True,
        metadata=_build_envelope(document.get("metadata")),
    )


def _has_objects(value: Json) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _parse_chat(document: dict[str, Json], raw: bytes, name: str) -> ParsedRequest:
    system = document.get("system", document.get("instructions"))
    conversation = read_conversation(name, document[name], system)
    problem = join_problems(conversation.problems, most=3)
    if len(conversation.attachments) == 1:
        datum = (conversation.attachments[0].data, conversation.attachments[0].content_type)
        return ParsedRequest(
            data=[datum], together=datum, attached=True, prompt=conversation.prompt, problem=problem
        )
    if conversation.attachments:
        datum = data_at(raw, member(raw, name), document[name])
        return ParsedRequest(
            data=[datum], together=datum, prompt=conversation.prompt, problem=problem
        )
    if not conversation.turns:
        return _build_single(raw, JSON, problem or _describe_no_input(f"`{name}` is empty"))
    datum = data_of(conversation.text)
    return ParsedRequest(data=[datum], together=datum, prompt=conversation.prompt, problem=problem)


def _parse_completion(document: dict[str, Json], raw: bytes, name: str) -> ParsedRequest:
    """Parse a prompt: a text, a list of texts, a text's tokens, or a list of those."""
    prompt = document.get(name)
    if prompt is None:
        return _build_single(raw, JSON, _describe_no_input(_NO_INPUT))
    span = member(raw, name)
    if isinstance(prompt, list) and len(prompt) == 1 and type(prompt[0]) in (str, list):
        (span,), (prompt,) = elements(raw, span, 1), prompt
    together = data_at(raw, span, prompt)
    if isinstance(prompt, list) and prompt and all(type(item) in (str, list) for item in prompt):
        pairs = zip(elements(raw, span, len(prompt)), prompt, strict=True)
        return ParsedRequest(
            data=[data_at(raw, span, item) for span, item in pairs], together=together
        )
    return ParsedRequest(data=[together], together=together, prompt=_text(prompt))


def _build_single(raw: bytes, content_type: str | None, problem: Problem) -> ParsedRequest:
    datum = (raw, content_type)
    return ParsedRequest(data=[datum], together=datum, problem=problem)


def _describe_no_input(sentence: str) -> Problem:
    return Problem(sentence, ("request", "no_input"))


def _build_envelope(metadata: Json) -> bytes | None:
    """Return `{"key": "value", …}` as a list of `{key, type, value}`; a list stays unchanged."""
    if isinstance(metadata, list) and metadata:
        return written(metadata)
    if not isinstance(metadata, dict) or not metadata:
        return None
    items = [
        {"key": key, "type": "string" if type(value) is str else "json", "value": value}
        for key, value in metadata.items()
    ]
    return written(items)


def _text(value: Json) -> str | None:
    return value if type(value) is str and value else None
