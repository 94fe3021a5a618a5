"""Protocols over REST without tensors: Chariot's lines, KServe's instances, and bodies of any kind.

- `chariot-v2`, as JSON or without a content type: `{"input": "<base64>", "parameters": {…}}` →
  `{"output": […]}`; as `application/jsonl`, one a line → one a line; any other content type: the
  body is the datum, its parameters the JSON of a header.
- `kserve-v1`, TensorFlow Serving's too: `instances` in, `predictions` out. Each instance is a datum
  if there is a prediction for each, else the request is one. The datum is the bytes of its base64
  (`{"b64": …}`, alone or as the only such member; for images any string that is base64), its text,
  or its JSON as it was written.
- Any other body is a datum as it came.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from inference_store.inference.json_text import Json, cut_items, cut_members
from inference_store.inference.task_types import task_type_of
from inference_store.proxy import exchange as exchanged
from inference_store.proxy.exchange import Exchange, Headers, correct_headers, from_text, header

from . import documents
from .documents import (
    JSON,
    Document,
    change_json,
    data_of,
    media_type,
    read_both,
    text_or_base64,
    write_answer,
)
from .openai import OPENAI
from .protocol import NAMES, Call, Inference, Model, Problem, Protocol, Reading, join_problems
from .v2 import remove_metadata

LINES: Final = "application/jsonl"
PARAMETERS: Final = "chariot-inference-parameters"


class _Item(NamedTuple):
    data: bytes
    content_type: str | None
    problem: Problem | None = None
    parameters: Mapping[str, Json] = MappingProxyType({})

    @property
    def prompts(self) -> list[str]:
        """The prompts about an image."""
        prompts = self.parameters.get("prompts")
        return [it for it in prompts if type(it) is str] if isinstance(prompts, list) else []

    @property
    def metadata(self) -> Sequence[bytes]:
        """The envelope in the parameters, as JSON."""
        envelope = self.parameters.get("metadata")
        return () if envelope is None or envelope == "" else (documents.written(envelope),)


def _read_items(body: Document, headers: Headers) -> list[_Item]:
    """Return the items of a request, at least one; an unreadable body is one datum."""
    kind = media_type(headers)
    if body.problem:
        return [_Item(body.raw, kind or None, body.problem)]
    if kind == LINES:
        items = [_read_envelope(line, f"line {number}") for number, line in _split_lines(body.raw)]
        return items or [_Item(body.raw, kind, Problem.unreadable("the request has no line"))]
    if kind in ("", JSON):
        return [_read_envelope(body.raw, NAMES["request"])]
    return [_Item(body.raw, kind, *_read_header(headers))]


def _split_lines(raw: bytes) -> list[tuple[int, bytes]]:
    """Return the lines that are not blank, each with its number from 1."""
    lines = enumerate(raw.split(b"\n"), start=1)
    return [(number, line.strip()) for number, line in lines if line.strip()]


def _read_envelope(raw: bytes, part: str) -> _Item:
    """Read an item `{"input", "parameters"}`; `part`: its name in a sentence."""
    document = Document("request", raw).as_json(part, exact=b'"metadata"' in raw)
    value, parameters = document.members.get("input"), document.members.get("parameters")
    if document.problem:
        return _Item(raw, None, document.problem)
    if value is None:
        problem = f'{part} has no `input`, expected {{"input": "<base64>", "parameters": {{…}}}}'
        return _Item(raw, JSON, Problem.unreadable(problem))
    coded = from_text(value) if type(value) is str else None
    datum = coded or data_of(value, cut_members(document.text)["input"])
    if parameters is None or isinstance(parameters, dict):
        return _Item(*datum, None, parameters or {})
    return _Item(*datum, Problem.unreadable(f"the `parameters` of {part} are no object"))


def _read_header(headers: Headers) -> tuple[Problem | None, Mapping[str, Json]]:
    value, name = header(headers, PARAMETERS) or "", f"the header {PARAMETERS}"
    if not value.strip():
        return None, {}
    document = Document("request", exchanged.utf8(value)).as_json(name, exact=True)
    if isinstance(document.value, dict):
        return None, document.value
    return document.problem or Problem.unreadable(f"{name} is not a JSON object"), {}


def read_lines(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read an inference a line if each has an answer line, or all have one error; else only one."""
    request, whole = read_both(exchange)
    items, status = _read_items(request, exchange.request_headers), exchange.http_status
    answers = [whole.as_json()] * len(items)
    # one answer is for all lines if it failed, is missing, or cannot be read
    is_for_all = (status or 0) >= 400 or whole.problem is not None or not whole.raw.strip()
    by_line = media_type(exchange.request_headers) == LINES and not is_for_all
    if by_line:
        lines = _split_lines(whole.raw)
        named = [(f"line {number} of the answer", line) for number, line in lines]
        answers = [Document("response", line).as_json(name) for name, line in named]
    mismatch = Problem.mismatch(len(items), len(answers), "lines", "answer lines")
    inferences = [
        Inference(
            data=item.data,
            data_content_type=item.content_type,
            response=answer.answer(),
            metadata=item.metadata,
            error=answer.find_error() if by_line else None,
        )
        for item, answer in zip(items, answers, strict=False)
    ]
    if mismatch:
        metadata = [envelope for item in items for envelope in item.metadata]
        joined = replace(whole, problem=mismatch).answer() if by_line else answers[0].answer()
        inferences = [
            Inference(data=request.raw, data_content_type=LINES, response=joined, metadata=metadata)
        ]
    action, prompts = items[0].parameters.get("action"), items[0].prompts
    alike = prompts and all(item.prompts == prompts for item in items)
    request_problems = [item.problem for item in items if item.problem][:3]
    answer_problems = [line.problem for line in answers if line.problem][:1]
    return Reading(
        inferences=inferences,
        action=action if type(action) is str and action else None,
        standard={"prompts": prompts} if alike else {},
        error=None if by_line else answers[0].find_error(status),
        problem=join_problems([*request_problems, *answer_problems, mismatch]),
    )


_BEFORE: Final = b'{"parameters":'
_AFTER: Final = b"}"


def strip(body: bytes, headers: Headers) -> tuple[bytes, Headers] | None:
    """Return the body and its headers; None if it has no metadata, or cannot be read."""
    kind = media_type(headers)
    if kind in ("", JSON):
        return change_json(body, headers, remove_metadata)
    if kind == LINES:
        return change_json(body, headers, _strip_lines)
    raw = exchanged.utf8(header(headers, PARAMETERS) or "")
    stripped = remove_metadata(_BEFORE + raw + _AFTER)[len(_BEFORE) : -len(_AFTER)]
    if len(stripped) == len(raw):
        return None
    return body, correct_headers(headers, {PARAMETERS: stripped.decode("latin-1")})


def _strip_lines(text: bytes) -> bytes:
    return b"\n".join(map(remove_metadata, text.split(b"\n")))


def read_instances(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read one inference per instance, if there is a prediction for each or the call failed."""
    task_type = task_type_of(model.task_type)
    request, answer = read_both(exchange)
    request, answer = request.as_json(), answer.as_json(exact=task_type.exact)
    error = answer.find_error(exchange.http_status)
    instances = _find_list(request, "instances")
    predictions = _find_list(answer, "predictions", "explanations")
    count = len(instances)
    is_for_all = count == 1 or error is not None or answer.problem or not answer.raw.strip()
    answers = count if is_for_all else len(predictions)
    problem = Problem.mismatch(count, answers, "instances", "predictions")
    if not instances:
        sentence = "the request has no list `instances`: its body is the datum"
        problem = request.problem or Problem.unreadable(sentence)
    responses = [answer.answer()]
    data: Sequence[tuple[bytes, str | None]] = [(request.raw, None if request.problem else JSON)]
    if not problem:
        texts = cut_items(cut_members(request.text)["instances"])
        pairs = zip(instances, texts, strict=True)
        data = [_find_base64(it, task_type.vision) or data_of(it, text) for it, text in pairs]
        names = {"model_name": call.model, "model_version": call.version}
        divided = [] if is_for_all else predictions
        each = [write_answer({"predictions": [it]}, **names) for it in divided]
        responses = [*each] or responses * count
    return Reading(
        inferences=[
            Inference(data=datum, data_content_type=kind, response=response)
            for (datum, kind), response in zip(data, responses, strict=True)
        ],
        items="instances",
        action=call.operation or "predict",
        error=error,
        problem=join_problems([problem, answer.problem]),
    )


def _find_list(document: Document, *names: str) -> list[Json]:
    lists = (document.members.get(name) for name in names)
    return next((value for value in lists if isinstance(value, list)), [])


def _find_base64(instance: Json, vision: bool) -> tuple[bytes, str | None] | None:
    if type(instance) is str:
        return from_text(instance) if vision else exchanged.from_data_url(instance)
    if not isinstance(instance, dict):
        return None
    values = [instance, *instance.values()]
    coded = [value.get("b64") for value in values if isinstance(value, dict)]
    texts = [text for text in coded if type(text) is str]
    if type(instance.get("b64")) is str:
        return from_text(texts[0])
    if not texts and vision:
        texts = [text for text in instance.values() if type(text) is str and len(text) > _LABEL]
    return from_text(texts[0]) if len(texts) == 1 else None


_LABEL: Final = 64
"""The most characters of a name or a label: even the smallest images are longer."""


def read_body(exchange: Exchange, call: Call, _model: Model) -> Reading:
    """Read one inference: the body and the answer."""
    request, answer = read_both(exchange)
    kind = media_type(exchange.response_headers)
    response = None
    if not answer.problem and (kind == JSON or kind.endswith("+json")):
        answer = answer.as_json()
        response = answer.answer()
    elif answer.raw or exchange.response.size:
        response = write_answer({"body": [text_or_base64(answer.raw)]})
    sent = media_type(exchange.request_headers) or None
    return Reading(
        inferences=[Inference(data=request.raw, data_content_type=sent, response=response)],
        action=call.operation or f"{exchange.method} {exchange.path}",
        standard={"response_content_type": kind} if kind else {},
        error=answer.find_error(exchange.http_status),
        problem=join_problems([request.problem, answer.problem]),
    )


def read_messages(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference: the joined messages of the request, and the messages of the answer."""
    sent, came = exchange.request, exchange.response
    messages = [text_or_base64(message) for message in came.parts]
    response = write_answer({"messages": messages}) if messages else None
    missing = [Problem.missing(sent, "request"), Problem.missing(came, "response")]
    datum, kind = sent.bytes, "application/grpc"
    message = header(exchange.response_trailers, "grpc-message")
    return Reading(
        inferences=[Inference(data=datum, data_content_type=kind, response=response)],
        action=exchange.method,
        error=message if exchange.grpc_code != 0 else None,
        problem=join_problems(missing),
    )


def read_invocation(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read a chat as OpenAI's, `instances` as KServe V1, and any other body as it is."""
    request = read_both(exchange)[0].as_json()
    if isinstance(request.members.get("messages"), list):
        return OPENAI.read(exchange, call, model)
    is_list = isinstance(request.members.get("instances"), list)
    return (read_instances if is_list else read_body)(exchange, call, model)


CHARIOT_V2: Final = Protocol(
    name="chariot-v2",
    path=re.compile("/infer/?"),
    read=read_lines,
    strip=strip,
)
KSERVE_V1: Final = Protocol(
    name="kserve-v1",
    path=re.compile(
        r"/v1/models/(?P<model>[^/]+?)(?:/versions/(?P<version>[^/:]+?))?"
        r"(?::|%3A)(?P<operation>predict|explain)/?"
    ),
    read=read_instances,
)
MLFLOW: Final = Protocol(
    name="mlflow",
    path=re.compile("/(?P<operation>invocations)/?"),
    read=read_invocation,
)
TORCHSERVE: Final = Protocol(
    name="torchserve",
    path=re.compile(
        "/(?P<operation>predictions|explanations|wfpredict)"
        "/(?P<model>[^/]+)(?:/(?P<version>[^/]+))?/?"
    ),
    methods=("POST", "PUT"),
    read=read_body,
)
RAW: Final = Protocol(
    name="raw",
    path=re.compile(".*", re.DOTALL),
    methods=(),
    read=read_body,
)
RAW_GRPC: Final = Protocol(
    name="raw-grpc",
    transport="grpc",
    path=re.compile(".*", re.DOTALL),
    read=read_messages,
)
