"""A request's data and their parameters, in each of the three forms."""

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
class Asked:
    """One datum, and how it is to be treated."""

    data: bytes = field(repr=False)
    content_type: str | None = None
    parameters: dict[str, Json] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def metadata(self) -> Sequence[bytes]:
        """The envelope in the parameters, as JSON."""
        found = self.parameters.get("metadata")
        return () if found is None or found == "" else (written(found),)

    @property
    def action(self) -> str | None:
        """What is to be done with the datum."""
        found = self.parameters.get("action")
        return found if type(found) is str and found else None

    @property
    def prompts(self) -> list[str]:
        """What is asked about an image."""
        found = self.parameters.get("prompts")
        return [each for each in found if type(each) is str] if isinstance(found, list) else []


def asked(body: Document, headers: Headers) -> list[Asked]:
    """What is asked in a request, at least one; a body that cannot be read is a datum, whole."""
    kind = media_type(headers)
    if body.problem:
        return [Asked(data=body.raw, content_type=kind or None, problem=body.problem)]
    if kind == LINES:
        return [_enveloped(line, f"line {number}") for number, line in lines_of(body.raw)] or [
            Asked(data=body.raw, content_type=kind, problem=_unread("the request has no line"))
        ]
    if kind in _ENVELOPE:
        return [_enveloped(body.raw, NAMES["request"])]
    parameters, problem = _in_header(headers)
    return [Asked(data=body.raw, content_type=kind, parameters=parameters, problem=problem)]


def lines_of(raw: bytes) -> list[tuple[int, bytes]]:
    """The lines that hold something, each with its number from 1."""
    lines = enumerate(raw.split(b"\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _enveloped(raw: bytes, place: str) -> Asked:
    """`{"input", "parameters"}`"""
    found = parsed(raw, "request", place, exact=b'"metadata"' in raw)
    if found.problem:
        return Asked(data=raw, problem=found.problem)
    if not isinstance(found.value, dict) or found.value.get("input") is None:
        problem = f'{place} has no `input`, expected {{"input": "<base64>", "parameters": {{…}}}}'
        return Asked(data=raw, content_type="application/json", problem=_unread(problem))
    given = found.value["input"]
    data, content_type = _decoded(given) or data_at(raw, member(raw, "input"), given)
    parameters = found.value.get("parameters")
    if parameters is None or isinstance(parameters, dict):
        return Asked(data=data, content_type=content_type, parameters=parameters or {})
    problem = f"the `parameters` of {place} are no object"
    return Asked(data=data, content_type=content_type, problem=_unread(problem))


def _unread(sentence: str) -> Problem:
    return Problem(sentence, ("request", "unreadable"))


def _decoded(given: Json) -> tuple[bytes, str | None] | None:
    """The bytes of base64; a text that is none, and other JSON, are as they are."""
    if type(given) is not str:
        return None
    raw = from_base64(given)
    return from_data_url(given) or (None if raw is None else (raw, None))


def _in_header(headers: Headers) -> tuple[dict[str, Json], Problem | None]:
    value = header(headers, PARAMETERS)
    if value is None or not value.strip():
        return {}, None
    found = parsed(utf8(value), "request", f"the header {PARAMETERS}", exact=True)
    if found.problem or not isinstance(found.value, dict):
        return {}, found.problem or _unread(f"the header {PARAMETERS} is not a JSON object")
    return found.value, None
