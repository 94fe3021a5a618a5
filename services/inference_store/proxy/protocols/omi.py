"""OMI, Modzy's container specification: `Run` over gRPC, one inference per input item.

An item is a set of named files: the datum is the only file, or all of them as JSON by name. The
answer is V2's JSON: one output with the predictions of the result file, and all files under
`files`, including explanations and drift.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import Json, UnreadableJson, read_json
from inference_store.inference.task_types import predictions_in
from inference_store.proxy.exchange import Body, Exchange

from .documents import (
    JSON,
    Document,
    as_object,
    is_text,
    read_message,
    text_or_base64,
    write_answer,
    written,
)
from .protocol import Call, Inference, Model, Problem, Protocol, Reading, join_problems
from .tensor_reading import ERROR

RESULTS: Final = "results.json"
_NO_ERROR: Final = "the container says that it failed, and not why"
_TASK_TYPES: Final[Mapping[Json, str]] = {
    "imageClassification": "image_classification",
    "textClassification": "text_classification",
    "objectDetection": "object_detection",
    "imageSegmentation": "image_segmentation",
}
"""Values of `modelType`."""


class _Result(NamedTuple):
    answer: Inference
    """Without a datum."""
    task_type: str | None = None
    has_classes: bool = False
    problem: Problem | None = None


def _read_result(item: Any) -> _Result:
    files = _read_files(item.output)
    if not item.success:
        error = item.output.get(ERROR, b"").decode("utf-8", "replace").strip()
        response = written({"error": error, "files": files})
        return _Result(Inference(response=response, error=error or _NO_ERROR))
    name = _find_main(files)
    if name is None:
        sentence = f"an output item has neither {RESULTS} nor a single file"
        problem = Problem.unreadable(f"{sentence}: no predictions are read", "response")
        answer = Inference(response=write_answer({}, files=files))
        return _Result(answer, problem=problem if files else None)
    elements, kind = _read_elements(files[name])
    model_type = _find_member(files[name], "modelType")
    return _Result(
        Inference(response=write_answer({name: elements}, files=files)),
        task_type=_TASK_TYPES.get(model_type) if type(model_type) is str else None,
        has_classes=kind == "classPredictions",
    )


def _read_files(files: Mapping[str, bytes]) -> dict[str, Json]:
    """Return files by name: JSON, text, or `{"b64": …}`."""
    return {name: _read_content(files[name]) for name in sorted(files)}


def _read_content(raw: bytes) -> Json:
    if raw.lstrip()[:1] in (b"{", b"["):
        with suppress(UnreadableJson):
            return read_json(raw)
    return text_or_base64(raw)


def _find_main(files: Mapping[str, Json]) -> str | None:
    """Return the file with the predictions: in Modzy's format, `results.json`, or the only one."""
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
    members = as_object(content)
    return members.get(name, as_object(members.get("data")).get(name))


LEAST_FAILED: Final = 400


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference per input item; the whole request is one if items cannot be matched."""
    request = _parse(exchange.request, "request", "RunRequest")
    answer = _parse(exchange.response, "response", "RunResponse")
    run = answer.value
    items = [] if request.value is None else request.value.inputs
    outputs = [] if run is None else run.outputs
    results = list(map(_read_result, outputs))
    mismatch = Problem.mismatch(len(items), len(results or items), "input items", "output items")
    if not items and (results or not exchange.request.parts):
        mismatch = Problem("the request has no input items", ("request", "no_input"))
    if not items or mismatch:
        whole = answer.answer()
        if run is not None:
            files = [_read_files(item.output) for item in outputs]
            whole = write_answer({}, status_code=run.status_code, items=files)
        kind = "application/x-protobuf"
        inferences = [Inference(data=request.raw, data_content_type=kind, response=whole)]
    else:
        answers = [result.answer for result in results] or [_build_answer(run)] * len(items)
        pairs = zip(items, answers, strict=True)
        inferences = [_build_datum(item.input).answered(half) for item, half in pairs]
    problems = [request.problem, answer.problem, None if request.problem else mismatch]
    problems += [result.problem for result in results if result.problem][:3]
    failed = run is not None and run.status_code >= LEAST_FAILED
    return Reading(
        inferences=inferences,
        action="run",
        task_type=_find_task_type(results, inferences[0]),
        error=describe_failure(run) if failed else None,
        standard=_read_standard(request.value, run),
        problem=join_problems(problems),
    )


def _parse(body: Body, side: CaptureSide, name: str) -> Document:
    """Parse a message, if all of it is there."""
    is_there = body.whole and body.parts
    missing = Document(side, body.bytes, problem=Problem.missing(body, side))
    return read_message(body.bytes, side, name) if is_there else missing


def describe_failure(answer: Any) -> str:
    """Return the reason of a Run or a Status that failed."""
    return answer.message or answer.status or f"status_code {answer.status_code}"


def _build_datum(files: Mapping[str, bytes]) -> Inference:
    if len(files) == 1:
        return Inference(data=next(iter(files.values())))
    contents = {name: text_or_base64(files[name]) for name in sorted(files)}
    return Inference(data=written(contents), data_content_type=JSON)


def _build_answer(answer: Any) -> Inference:
    """Return the answer to each input item, if there are no output items."""
    if answer is None:
        return Inference()
    fields = {"status_code": answer.status_code, "status": answer.status, "message": answer.message}
    return Inference(response=written({"error": describe_failure(answer), **fields}))


def _find_task_type(results: list[_Result], first: Inference) -> str | None:
    """Return the task type that a result names; if there are only classes, that of the datum."""
    task_type = next((result.task_type for result in results if result.task_type), None)
    if task_type or not any(result.has_classes for result in results):
        return task_type
    return "text_classification" if is_text(first.data or b"") else "image_classification"


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
    path=re.compile(RUN),
    read=read,
)
