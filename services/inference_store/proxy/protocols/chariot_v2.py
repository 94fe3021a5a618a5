"""`chariot-v2`: one datum per request, several as JSON Lines, or the datum itself as the body.

- JSON, or no content type: `{"input": "<base64>", "parameters": {…}}` → `{"output": […]}`
- `application/jsonl`: such a request a line → such an answer a line
- any other content type: the body is the datum, its parameters the JSON of a header
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inference_store.inference.json_text import Json, UnreadableJson
from inference_store.proxy.exchange import (
    Exchange,
    Headers,
    correct_headers,
    from_text,
    header,
    utf8,
)

from .documents import (
    Document,
    NotDecoded,
    answer_json,
    as_json,
    data_at,
    decode,
    encode,
    find_error,
    find_failure,
    media_type,
    member,
    parsed,
    read_bytes,
    written,
)
from .protocol import (
    MOST_STRIPPED,
    NAMES,
    Call,
    Inference,
    Model,
    Problem,
    Protocol,
    Reading,
    find_mismatch,
    join_problems,
    unreadable,
)
from .v2 import remove_metadata

LINES: Final = "application/jsonl"
PARAMETERS: Final = "chariot-inference-parameters"
_ENVELOPE: Final = frozenset({"", "application/json"})


@dataclass(frozen=True, slots=True)
class RequestItem:
    """One datum and its parameters."""

    data: bytes = field(repr=False)
    content_type: str | None = None
    problem: Problem | None = None
    parameters: dict[str, Json] = field(default_factory=dict)

    @property
    def metadata(self) -> Sequence[bytes]:
        """The envelope in the parameters, as JSON."""
        envelope = self.parameters.get("metadata")
        return () if envelope is None or envelope == "" else (written(envelope),)

    @property
    def prompts(self) -> list[str]:
        """The prompts about an image."""
        prompts = self.parameters.get("prompts")
        texts = prompts if isinstance(prompts, list) else []
        return [prompt for prompt in texts if type(prompt) is str]


def read_items(body: Document, headers: Headers) -> list[RequestItem]:
    """Return the items of a request, at least one; an unreadable body is one datum."""
    kind = media_type(headers)
    if body.problem:
        return [RequestItem(body.raw, kind or None, body.problem)]
    if kind == LINES:
        items = [_read_envelope(line, f"line {number}") for number, line in split_lines(body.raw)]
        return items or [RequestItem(body.raw, kind, unreadable("the request has no line"))]
    if kind in _ENVELOPE:
        return [_read_envelope(body.raw, NAMES["request"])]
    parameters, problem = _read_header(headers)
    return [RequestItem(body.raw, kind, problem, parameters)]


def split_lines(raw: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, each with its number from 1."""
    lines = enumerate(raw.split(b"\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _read_envelope(raw: bytes, part: str) -> RequestItem:
    """Read an item `{"input", "parameters"}`; `part`: its name in a sentence."""
    document = parsed(raw, "request", part, exact=b'"metadata"' in raw)
    if document.problem:
        return RequestItem(raw, problem=document.problem)
    if not isinstance(document.value, dict) or document.value.get("input") is None:
        problem = f'{part} has no `input`, expected {{"input": "<base64>", "parameters": {{…}}}}'
        return RequestItem(raw, "application/json", unreadable(problem))
    value = document.value["input"]
    decoded = from_text(value) if type(value) is str else None
    data, content_type = decoded or data_at(raw, member(raw, "input"), value)
    parameters = document.value.get("parameters")
    if parameters is None or isinstance(parameters, dict):
        return RequestItem(data, content_type, None, parameters or {})
    return RequestItem(data, content_type, unreadable(f"the `parameters` of {part} are no object"))


def _read_header(headers: Headers) -> tuple[dict[str, Json], Problem | None]:
    value = header(headers, PARAMETERS)
    if value is None or not value.strip():
        return {}, None
    document = parsed(utf8(value), "request", f"the header {PARAMETERS}", exact=True)
    if document.problem or not isinstance(document.value, dict):
        sentence = f"the header {PARAMETERS} is not a JSON object"
        return {}, document.problem or unreadable(sentence)
    return document.value, None


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference per line if there is an answer line for each, or one error for all; else a
    single inference."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    answer = read_bytes(exchange.response, exchange.response_headers, "response")
    items = read_items(request, exchange.request_headers)
    # one answer is for all lines if it failed, is missing, or cannot be read
    failed = (exchange.http_status or 0) >= 400
    is_for_all = failed or answer.problem is not None or not answer.raw.strip()
    by_line = media_type(exchange.request_headers) == LINES and not is_for_all
    whole = as_json(answer, "response")
    answers = [whole] * len(items)
    if by_line:
        lines = split_lines(answer.raw)
        answers = [parsed(line, "response", f"line {at} of the answer") for at, line in lines]
    mismatch = find_mismatch(len(items), len(answers), "lines", "answer lines")
    if mismatch:
        joined = Document(raw=answer.raw, problem=mismatch) if by_line else whole
        inferences = [_join_inferences(request, items, joined)]
    else:
        pairs = zip(items, answers, strict=True)
        inferences = [_build_inference(item, line, alone=by_line) for item, line in pairs]
    ok, error = (None, None) if by_line else find_failure(exchange, answers[0])
    action, prompts = items[0].parameters.get("action"), items[0].prompts
    alike = prompts and all(item.prompts == prompts for item in items)
    request_problems = [item.problem for item in items if item.problem][:3]
    answer_problems = [line.problem for line in answers if line.problem][:1]
    return Reading(
        inferences=inferences,
        action=action if type(action) is str and action else None,
        standard={"prompts": prompts} if alike else {},
        ok=ok,
        error=error,
        problem=join_problems([*request_problems, *answer_problems, mismatch]),
    )


def _join_inferences(request: Document, items: list[RequestItem], answer: Document) -> Inference:
    return Inference(
        data=request.raw,
        data_content_type=LINES,
        response=answer_json(answer),
        metadata=[envelope for item in items for envelope in item.metadata],
    )


def _build_inference(item: RequestItem, answer: Document, *, alone: bool) -> Inference:
    """Return an inference. `alone`: the answer, and an error in it, are about this datum only."""
    error = find_error(answer.value) if alone else None
    return Inference(
        data=item.data,
        data_content_type=item.content_type,
        response=answer_json(answer),
        metadata=item.metadata,
        ok=None if error is None else False,
        error=error,
    )


_BEFORE: Final = b'{"parameters":'
_AFTER: Final = b"}"


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the body and its headers; None if it has no metadata, or cannot be read."""
    kind = media_type(headers)
    if kind not in {"", "application/json", LINES}:
        return _strip_header(body, headers)
    try:
        raw = decode(body, headers, MOST_STRIPPED)
    except NotDecoded:
        return None
    lines = raw.split(b"\n") if kind == LINES else [raw]
    stripped = b"\n".join([_strip_json(line) for line in lines])
    if len(stripped) == len(raw):
        return None
    coded = encode(stripped, headers)
    return coded, correct_headers(headers, {"content-length": str(len(coded))})


def _strip_header(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    value = header(headers, PARAMETERS)
    raw = b"" if value is None else utf8(value)
    stripped = _strip_json(_BEFORE + raw + _AFTER)[len(_BEFORE) : -len(_AFTER)]
    if len(stripped) == len(raw):
        return None
    return body, correct_headers(headers, {PARAMETERS: stripped.decode("latin-1")})


def _strip_json(text: bytes) -> bytes:
    """Return a JSON text without its metadata; unchanged if it cannot be read."""
    try:
        return remove_metadata(text) or text
    except UnreadableJson:
        return text


CHARIOT_V2: Final = Protocol(
    name="chariot-v2",
    transport="rest",
    calls="`POST /infer`",
    datum="the decoded `input`, a line each of JSON Lines, or the body",
    answer="as it came",
    path=re.compile("/infer/?"),
    read=read,
    strip=strip,
)
