"""Reads a `Run`: each input item with its output item."""

from collections.abc import Mapping
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.answers import v2_answer_json
from inference_store.proxy.protocols.documents import text_or_base64, written
from inference_store.proxy.protocols.problems import NAMES, Problem, describe_missing, join_problems
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .results import Result, read_result, task_type_of_classes

_PROTOBUF: Final = "application/x-protobuf"
_LEAST_FAILED: Final = 400
_NO_ERROR: Final = "the container says that it failed, and not why"


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference per input item; the whole request is one if items cannot be matched."""
    request, request_problem = _parse_message("RunRequest", exchange.request, "request")
    answer, answer_problem = _parse_message("RunResponse", exchange.response, "response")
    failed = answer is not None and answer.status_code >= _LEAST_FAILED
    error = _describe_failure(answer) if failed else None
    items = list(request.inputs) if request is not None else []
    outputs = list(answer.outputs) if answer is not None else []
    results = [read_result(item.output, success=item.success) for item in outputs]
    mismatch = _find_mismatch(len(items), len(results))
    if not items or mismatch:
        inferences = [_join_inferences(exchange, answer, results)]
    else:
        matched = results or [_build_result(answer)] * len(items)
        pairs = zip(items, matched, strict=True)
        inferences = [_build_inference(item.input, result) for item, result in pairs]
    problems = [request_problem, answer_problem, mismatch, *_list_problems(results)]
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
    name_of_side = NAMES[side]
    if not body.parts and body.whole:
        no_message = Problem(f"{name_of_side} has no message", ("request", "no_input"))
        return None, None if side == "response" else no_message
    if not body.whole:
        return None, describe_missing(body, side)
    parsed_message = parsed(name, body.bytes)
    return parsed_message, None if parsed_message is not None else Problem(
        f"{name_of_side} is no {name}", (side, "unreadable")
    )


def _describe_failure(answer: Any) -> str:
    return answer.message or answer.status or f"status_code {answer.status_code}"


def _find_mismatch(items: int, results: int) -> Problem | None:
    if items > MOST_INFERENCES:
        sentence = f"{items} input items, over {MOST_INFERENCES}: kept as one inference"
        return Problem(sentence, ("request", "not_divided"))
    if items and results and items != results:
        sentence = f"{results} output items to {items} input items: kept as one inference"
        return Problem(sentence, ("response", "not_divided"))
    if items or not results:
        return None
    return Problem("there are output items and no input items", ("request", "no_input"))


def _build_inference(files: Mapping[str, bytes], result: Result) -> Inference:
    data, kind = datum_of(files)
    return Inference(
        data=data,
        data_content_type=kind,
        response=result.response,
        ok=result.ok,
        error=result.error or (_NO_ERROR if result.ok is False else None),
    )


def datum_of(files: Mapping[str, bytes]) -> tuple[bytes, str | None]:
    """Return the only file; else all as JSON by name, texts unchanged and others as `{"b64":
    …}`."""
    if len(files) == 1:
        return next(iter(files.values())), None
    contents = {name: text_or_base64(files[name]) for name in sorted(files)}
    return written(contents), "application/json"


def _build_result(answer: Any) -> Result:
    """Return the result that a failed Run has for every item."""
    if answer is None:
        return Result()
    fields = {"status_code": answer.status_code, "status": answer.status, "message": answer.message}
    return Result(response=written({"error": _describe_failure(answer), **fields}))


def _join_inferences(exchange: Exchange, answer: Any, results: list[Result]) -> Inference:
    """Return the unchanged messages as one inference."""
    response = None
    if answer is not None:
        response = v2_answer_json(
            [], status_code=answer.status_code, items=[result.files for result in results]
        )
    elif exchange.response.bytes:
        response = written({"body": text_or_base64(exchange.response.bytes)})
    return Inference(data=exchange.request.bytes, data_content_type=_PROTOBUF, response=response)


def _list_problems(results: list[Result]) -> list[Problem]:
    return [result.problem for result in results if result.problem][:3]


def _find_task_type(results: list[Result], first: Inference) -> str | None:
    """Return the task type that a result names; if there are only classes, the datum distinguishes
    texts from images."""
    task_type = next((result.task_type for result in results if result.task_type), None)
    if task_type or not any(result.has_classes for result in results):
        return task_type
    return task_type_of_classes(first.data or b"")


def _read_standard(request: Any, answer: Any) -> dict[str, Any]:
    status = {} if answer is None else {"status_code": answer.status_code}
    if request is None:
        return status
    # Metadata of every inference: a name that only some items have may identify a person.
    names = [set(item.input) for item in request.inputs]
    shared = sorted(set.intersection(*names)) if names else []
    flags = {"detect_drift": request.detect_drift, "explain": request.explain}
    return {**status, **flags, "input_files": shared}
