"""What a request asks: its data, the model, whether the answer is to be a stream."""

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
from inference_store.proxy.protocols.problems import Problem, joined

from .messages import conversation_of

Datum: TypeAlias = tuple[bytes, str | None]
"""Its bytes and its content type."""
_NOT_AN_OBJECT: Final = "the request is not a JSON object with messages or a prompt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, read."""

    data: Sequence[Datum] = field(repr=False)
    """At least one; several only of a list of prompts."""
    together: Datum = field(repr=False)
    """All of it as one datum."""
    attached: bool = False
    """The datum is an image, a sound or a file in the messages."""
    prompt: str | None = None
    """The user's last words."""
    model: str | None = None
    stream: bool = False
    metadata: bytes | None = None
    """OpenAI's own `metadata`, as an envelope."""
    problem: Problem | None = None

    @property
    def is_image(self) -> bool:
        """The datum is an image."""
        kind = self.together[1]
        return self.attached and kind is not None and kind.startswith("image/")


def asked(request: Document) -> Asked:
    """The request's document as a question; what cannot be read is one datum, whole."""
    document = request.value
    if not isinstance(document, dict):
        return _whole(request.raw, None, request.problem or _no_input(_NOT_AN_OBJECT))
    read = _chat if "messages" in document else _completion
    return replace(
        read(document, request.raw),
        model=_text(document.get("model")),
        stream=document.get("stream") is True,
        metadata=_envelope(document.get("metadata")),
    )


def _chat(document: dict[str, Json], raw: bytes) -> Asked:
    said = conversation_of(document["messages"])
    problem = joined(said.problems, most=3)
    if len(said.attachments) == 1:
        datum = (said.attachments[0].data, said.attachments[0].content_type)
        return Asked(
            data=[datum], together=datum, attached=True, prompt=said.prompt, problem=problem
        )
    if said.attachments:
        datum = data_at(raw, member(raw, "messages"), document["messages"])
        return Asked(data=[datum], together=datum, prompt=said.prompt, problem=problem)
    if not said.turns:
        return _whole(raw, JSON, problem or _no_input("`messages` is empty"))
    datum = data_of(said.text)
    return Asked(data=[datum], together=datum, prompt=said.prompt, problem=problem)


def _completion(document: dict[str, Json], raw: bytes) -> Asked:
    """A text, a list of texts, a text's tokens, or a list of those."""
    prompt = document.get("prompt")
    if prompt is None:
        return _whole(raw, JSON, _no_input("the request has neither `messages` nor a `prompt`"))
    span = member(raw, "prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and type(prompt[0]) in (str, list):
        (span,), (prompt,) = elements(raw, span, 1), prompt
    together = data_at(raw, span, prompt)
    if isinstance(prompt, list) and prompt and all(type(each) in (str, list) for each in prompt):
        pairs = zip(elements(raw, span, len(prompt)), prompt, strict=True)
        return Asked(data=[data_at(raw, *each) for each in pairs], together=together)
    return Asked(data=[together], together=together, prompt=_text(prompt))


def _whole(raw: bytes, content_type: str | None, problem: Problem) -> Asked:
    datum = (raw, content_type)
    return Asked(data=[datum], together=datum, problem=problem)


def _no_input(sentence: str) -> Problem:
    return Problem(sentence, ("request", "no_input"))


def _envelope(metadata: Json) -> bytes | None:
    """`{"key": "value", …}` as the list of `{key, type, value}`; a list is one already."""
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
