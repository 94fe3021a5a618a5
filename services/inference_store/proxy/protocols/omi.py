"""OMI, Modzy's container specification: `Run` over gRPC, one inference per input item.

An item is a set of named files: the datum is the only file, or all of them as JSON by name. The
answer is V2's JSON: one output with the predictions of the result file, and all files under
`files`, including explanations and drift.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.inference.json_text import Json, UnreadableJson, read_json
from inference_store.inference.task_types import predictions_in
from inference_store.proxy.exchange import Body, Exchange

from .documents import JSON, as_object, is_text, text_or_base64, write_answer, written
from .protocol import NAMES, Call, Inference, Model, Problem, Protocol, Reading, join_problems
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
    files: Mapping[str, Json]
    """All files by name: JSON, text, or `{"b64": …}`."""
    task_type: str | None = None
    has_classes: bool = False
    problem: Problem | None = None


def _read_result(files: Mapping[str, bytes], *, success: bool) -> _Result:
    contents = {name: _read_content(files[name]) for name in sorted(files)}
    if not success:
        error = files.get(ERROR, b"").decode("utf-8", "replace").strip()
        response = written({"error": error, "files": contents})
        return _Result(Inference(response=response, error=error or _NO_ERROR), contents)
    name = _find_main(contents)
    if name is None:
        sentence = f"an output item has neither {RESULTS} nor a single file"
        problem = Problem.unreadable(f"{sentence}: no predictions are read", "response")
        answer = Inference(response=write_answer({}, files=contents))
        return _Result(answer, contents, problem=problem if contents else None)
    elements, kind = _read_elements(contents[name])
    model_type = _find_member(contents[name], "modelType")
    return _Result(
        Inference(response=write_answer({name: elements}, files=contents)),
        contents,
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
    request, request_problem = _parse_message("RunRequest", exchange.request, "request")
    answer, answer_problem = _parse_message("RunResponse", exchange.response, "response")
    failed = answer is not None and answer.status_code >= LEAST_FAILED
    items = list(request.inputs) if request is not None else []
    outputs = list(answer.outputs) if answer is not None else []
    results = [_read_result(item.output, success=item.success) for item in outputs]
    count = len(results or items)
    mismatch = Problem.mismatch(len(items), count, "input items", "output items")
    if results and not items:
        mismatch = Problem.no_input("there are output items and no input items")
    if not items or mismatch:
        response, kind = _join_answers(exchange, answer, results), "application/x-protobuf"
        datum = exchange.request.bytes
        inferences = [Inference(data=datum, data_content_type=kind, response=response)]
    else:
        answers = [result.answer for result in results] or [_build_answer(answer)] * len(items)
        pairs = zip(items, answers, strict=True)
        inferences = [_build_datum(item.input).answered(half) for item, half in pairs]
    problems = [request_problem, answer_problem, mismatch]
    problems += [result.problem for result in results if result.problem][:3]
    return Reading(
        inferences=inferences,
        action="run",
        task_type=_find_task_type(results, inferences[0]),
        error=describe_failure(answer) if failed else None,
        standard=_read_standard(request, answer),
        problem=join_problems(problems),
    )


def _parse_message(name: str, body: Body, side: CaptureSide) -> tuple[Any, Problem | None]:
    """Parse a message; None if there is none, or it cannot be read."""
    if not body.whole:
        return None, Problem.missing(body, side)
    if not body.parts:
        no_message = Problem.no_input(f"{NAMES[side]} has no message")
        return None, None if side == "response" else no_message
    message = parsed(name, body.bytes)
    problem = Problem.unreadable(f"{NAMES[side]} is no {name}", side)
    return message, problem if message is None else None


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


def _join_answers(exchange: Exchange, answer: Any, results: list[_Result]) -> bytes | None:
    if answer is not None:
        files = [result.files for result in results]
        return write_answer({}, status_code=answer.status_code, items=files)
    whole = exchange.response.bytes
    return written({"body": text_or_base64(whole)}) if whole else None


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
    calls="`Run` of `ModzyModel`",
    datum="an item's only file, or its files as JSON by name",
    answer="`classPredictions` as `{label, score}`, and all `files`",
    path=re.compile(RUN),
    read=read,
)
