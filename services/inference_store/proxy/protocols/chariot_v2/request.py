"""Reads a request's data and their parameters, in all three forms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.json_text import Json
from inference_store.proxy.base64_text import from_base64, from_data_url
from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.metadata_header import utf8
from inference_store.proxy.protocols.documents import (
    Document,
    data_at,
    media_type,
    member,
    parsed,
    written,
)
from inference_store.proxy.protocols.problems import NAMES, Problem

LINES: Final = "application/jsonl"
PARAMETERS: Final = "chariot-inference-parameters"
_ENVELOPE: Final = frozenset({"", "application/json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestItem:
    """One datum and its parameters."""

    data: bytes = field(repr=False)
    content_type: str | None = None
    parameters: dict[str, Json] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def metadata(self) -> Sequence[bytes]:
        """The envelope in the parameters, as JSON."""
        envelope = self.parameters.get("metadata")
        return () if envelope is None or envelope == "" else (written(envelope),)

    @property
    def action(self) -> str | None:
        """The action that is requested for the datum."""
        action = self.parameters.get("action")
        return action if type(action) is str and action else None

    @property
    def prompts(self) -> list[str]:
        """The prompts about an image."""
        prompts = self.parameters.get("prompts")
        return (
            [prompt for prompt in prompts if type(prompt) is str]
            if isinstance(prompts, list)
            else []
        )


def read_items(body: Document, headers: Headers) -> list[RequestItem]:
    """Return the items of a request, at least one; an unreadable body is one datum."""
    kind = media_type(headers)
    if body.problem:
        return [RequestItem(data=body.raw, content_type=kind or None, problem=body.problem)]
    if kind == LINES:
        return [
            _read_envelope(line, f"line {number}") for number, line in split_lines(body.raw)
        ] or [
            RequestItem(
                data=body.raw,
                content_type=kind,
                problem=_describe_unreadable("the request has no line"),
            )
        ]
    if kind in _ENVELOPE:
        return [_read_envelope(body.raw, NAMES["request"])]
    parameters, problem = _read_header(headers)
    return [RequestItem(data=body.raw, content_type=kind, parameters=parameters, problem=problem)]


def split_lines(raw: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, each with its number from 1."""
    lines = enumerate(raw.split(b"\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _read_envelope(raw: bytes, part: str) -> RequestItem:
    """Read an item `{"input", "parameters"}`; `part`: its name in a sentence."""
    document = parsed(raw, "request", part, exact=b'"metadata"' in raw)
    if document.problem:
        return RequestItem(data=raw, problem=document.problem)
    if not isinstance(document.value, dict) or document.value.get("input") is None:
        problem = f'{part} has no `input`, expected {{"input": "<base64>", "parameters": {{…}}}}'
        return RequestItem(
            data=raw, content_type="application/json", problem=_describe_unreadable(problem)
        )
    value = document.value["input"]
    data, content_type = _decode(value) or data_at(raw, member(raw, "input"), value)
    parameters = document.value.get("parameters")
    if parameters is None or isinstance(parameters, dict):
        return RequestItem(data=data, content_type=content_type, parameters=parameters or {})
    problem = f"the `parameters` of {part} are no object"
    return RequestItem(data=data, content_type=content_type, problem=_describe_unreadable(problem))


def _describe_unreadable(sentence: str) -> Problem:
    return Problem(sentence, ("request", "unreadable"))


def _decode(value: Json) -> tuple[bytes, str | None] | None:
    """Return the bytes of base64; None for another text, and for other JSON."""
    if type(value) is not str:
        return None
    raw = from_base64(value)
    return from_data_url(value) or (None if raw is None else (raw, None))


def _read_header(headers: Headers) -> tuple[dict[str, Json], Problem | None]:
    value = header(headers, PARAMETERS)
    if value is None or not value.strip():
        return {}, None
    document = parsed(utf8(value), "request", f"the header {PARAMETERS}", exact=True)
    if document.problem or not isinstance(document.value, dict):
        return {}, document.problem or _describe_unreadable(
            f"the header {PARAMETERS} is not a JSON object"
        )
    return document.value, None
