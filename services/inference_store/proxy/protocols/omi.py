"""OMI, Modzy's container specification: `Run` over gRPC, one inference per input item.

An item is a set of named files: the datum is the only file, or all of them as JSON by name. The
answer is V2's JSON: one output with the predictions of the result file, and all files under
`files`, including explanations and drift.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import Json, UnreadableJson, read_json
from inference_store.inference.task_types import predictions_in
from inference_store.proxy.exchange import Body, Exchange

from .documents import output, text_or_base64, v2_answer_json, written
from .protocol import (
    NAMES,
    Call,
    Inference,
    Model,
    Problem,
    Protocol,
    Reading,
    describe_missing,
    find_mismatch,
    join_problems,
    no_input,
    unreadable,
)
from .tensor_reading import ERROR

RESULTS: Final = "results.json"
_NO_ERROR: Final = "the container says that it failed, and not why"
_TASK_TYPES: Final = MappingProxyType(
    {
        "imageClassification": "image_classification",
        "textClassification": "text_classification",
        "objectDetection": "object_detection",
        "imageSegmentation": "image_segmentation",
    }
)
"""Values of `modelType`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result in one output item."""

    response: bytes | None = field(default=None, repr=False)
    files: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """All files by name: JSON, text, or `{"b64": …}`."""
    task_type: str | None = None
    has_classes: bool = False
    ok: bool | None = None
    error: str | None = None
    problem: Problem | None = None


def read_result(files: Mapping[str, bytes], *, success: bool) -> Result:
    """Return the result in an output item's files."""
    contents = {name: _read_content(files[name]) for name in sorted(files)}
    if not success:
        error = files.get(ERROR, b"").decode("utf-8", "replace").strip() or None
        response = written({"error": error or "", "files": contents})
        return Result(response=response, files=contents, ok=False, error=error or _NO_ERROR)
    name = _find_main(contents)
    if name is None:
        sentence = (
            f"an output item has neither {RESULTS} nor a single file: no predictions are read"
        )
        return Result(
            response=v2_answer_json([], files=contents),
            files=contents,
            problem=unreadable(sentence, "response") if contents else None,
        )
    elements, kind = _read_elements(contents[name])
    model_type = _find_member(contents[name], "modelType")
    return Result(
        response=v2_answer_json([output(name, elements)], files=contents),
        files=contents,
        task_type=_TASK_TYPES.get(model_type) if type(model_type) is str else None,
        has_classes=kind == "classPredictions",
    )


def _read_content(raw: bytes) -> Json:
    if raw.lstrip()[:1] in (b"{", b"["):
        try:
            return read_json(raw)
        except UnreadableJson:
            pass
    return text_or_base64(raw)


def _find_main(files: Mapping[str, Json]) -> str | None:
    """Return the file with the predictions: that in Modzy's format, `results.json`, or the only
    one."""
    of_form = [name for name in files if _read_elements(files[name])[1]]
    if RESULTS in files and (RESULTS in of_form or not of_form):
        return RESULTS
    return next(iter(of_form or files), None) if len(files) == 1 or of_form else None


def _read_elements(content: Json) -> tuple[list[Json], str | None]:
    predictions = predictions_in(content)
    if predictions is not None:
        return predictions[1], predictions[0]
    result = _find_member(content, "result")
    return [content if result is None else result], None


def _find_member(content: Json, name: str) -> Any:
    if not isinstance(content, dict):
        return None
    data = content.get("data")
    inner = data.get(name) if isinstance(data, dict) else None
    return content.get(name, inner)


_PROTOBUF: Final = "application/x-protobuf"
LEAST_FAILED: Final = 400


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference per input item; the whole request is one if items cannot be matched."""
    request, request_problem = _parse_message("RunRequest", exchange.request, "request")
    answer, answer_problem = _parse_message("RunResponse", exchange.response, "response")
    failed = answer is not None and answer.status_code >= LEAST_FAILED
    error = describe_failure(answer) if failed else None
    items = list(request.inputs) if request is not None else []
    outputs = list(answer.outputs) if answer is not None else []
    results = [read_result(item.output, success=item.success) for item in outputs]
    mismatch = find_mismatch(len(items), len(results or items), "input items", "output items")
    if results and not items:
        mismatch = no_input("there are output items and no input items")
    if not items or mismatch:
        inferences = [_join_inferences(exchange, answer, results)]
    else:
        matched = results or [_build_result(answer)] * len(items)
        pairs = zip(items, matched, strict=True)
        inferences = [_build_inference(item.input, result) for item, result in pairs]
    problems = [request_problem, answer_problem, mismatch]
    problems += [result.problem for result in results if result.problem][:3]
    return Reading(
        inferences=inferences,
        action="run",
        task_type=_find_task_type(results, inferences[0]),
        ok=False if failed else None,
        error=error,
        standard=_read_standard(request, answer),
        problem=join_problems(problems),
    )


def _parse_message(name: str, body: Body, side: CaptureSide) -> tuple[Any, Problem | None]:
    """Parse a message; None if there is none, or it cannot be read."""
    if not body.parts and body.whole:
        no_message = no_input(f"{NAMES[side]} has no message")
        return None, None if side == "response" else no_message
    if not body.whole:
        return None, describe_missing(body, side)
    parsed_message = parsed(name, body.bytes)
    problem = unreadable(f"{NAMES[side]} is no {name}", side)
    return parsed_message, problem if parsed_message is None else None


def describe_failure(answer: Any) -> str:
    """Return the reason of a Run or a Status that failed."""
    return answer.message or answer.status or f"status_code {answer.status_code}"


def _build_inference(files: Mapping[str, bytes], result: Result) -> Inference:
    data, kind = datum_of(files)
    return Inference(
        data=data,
        data_content_type=kind,
        response=result.response,
        ok=result.ok,
        error=result.error,
    )


def datum_of(files: Mapping[str, bytes]) -> tuple[bytes, str | None]:
    """Return the only file; else all as JSON by name, texts unchanged and others as `{"b64":
    …}`."""
    if len(files) == 1:
        return next(iter(files.values())), None
    contents = {name: text_or_base64(files[name]) for name in sorted(files)}
    return written(contents), "application/json"


def _build_result(answer: Any) -> Result:
    if answer is None:
        return Result()
    fields = {"status_code": answer.status_code, "status": answer.status, "message": answer.message}
    return Result(response=written({"error": describe_failure(answer), **fields}))


def _join_inferences(exchange: Exchange, answer: Any, results: list[Result]) -> Inference:
    response = None
    if answer is not None:
        response = v2_answer_json(
            [], status_code=answer.status_code, items=[result.files for result in results]
        )
    elif exchange.response.bytes:
        response = written({"body": text_or_base64(exchange.response.bytes)})
    return Inference(data=exchange.request.bytes, data_content_type=_PROTOBUF, response=response)


def _find_task_type(results: list[Result], first: Inference) -> str | None:
    """Return the task type that a result names; if there are only classes, the datum distinguishes
    texts from images."""
    task_type = next((result.task_type for result in results if result.task_type), None)
    if task_type or not any(result.has_classes for result in results):
        return task_type
    datum = first.data or b""
    is_text = b"\0" not in datum and type(text_or_base64(datum)) is str
    return "text_classification" if is_text else "image_classification"


def _read_standard(request: Any, answer: Any) -> dict[str, Any]:
    status = {} if answer is None else {"status_code": answer.status_code}
    if request is None:
        return status
    # Metadata of every inference: a name that only some items have may identify a person.
    names = [set(item.input) for item in request.inputs]
    shared = sorted(set.intersection(*names)) if names else []
    flags = {"detect_drift": request.detect_drift, "explain": request.explain}
    return {**status, **flags, "input_files": shared}


RUN: Final = "/ModzyModel/Run"
OMI: Final = Protocol(
    name="omi",
    transport="grpc",
    calls="`Run` of `ModzyModel`",
    datum="an item's only file, or its files as JSON by name",
    answer="`classPredictions` as `{label, score}`, and all `files`",
    path=re.compile(RUN),
    read=read,
)
