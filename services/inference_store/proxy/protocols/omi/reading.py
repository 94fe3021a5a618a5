"""A `Run`, read: each input item with its output item."""

from collections.abc import Mapping
from typing import Any, Final

from inference_store.grpc_messages import parsed
from inference_store.inference.events import CaptureSide
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols.answers import in_v2
from inference_store.proxy.protocols.documents import text_or_base64, written
from inference_store.proxy.protocols.problems import NAMES, Problem, joined, missing
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .results import Result, result_of, task_type_of_classes

_PROTOBUF: Final = "application/x-protobuf"
_LEAST_FAILED: Final = 400
_NO_ERROR: Final = "the container says that it failed, and not why"


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """An inference an input item; the whole request is one where they cannot be matched."""
    request, asked_problem = _parsed("RunRequest", exchange.request, "request")
    answer, told_problem = _parsed("RunResponse", exchange.response, "response")
    failed = answer is not None and answer.status_code >= _LEAST_FAILED
    error = _failure(answer) if failed else None
    items = list(request.inputs) if request is not None else []
    outputs = list(answer.outputs) if answer is not None else []
    results = [result_of(item.output, success=item.success) for item in outputs]
    mismatch = _mismatch(len(items), len(results))
    if not items or mismatch:
        inferences = [_together(exchange, answer, results)]
    else:
        told = results or [_without_output(answer)] * len(items)
        pairs = zip(items, told, strict=True)
        inferences = [_inference(item.input, each) for item, each in pairs]
    problems = [asked_problem, told_problem, mismatch, *_said(results)]
    return Reading(
        inferences=inferences,
        action="run",
        task_type=_task_type(results, inferences[0]),
        ok=False if failed else None,
        error=error,
        standard=_standard(request, answer),
        problem=joined(problems),
    )


def _parsed(name: str, body: Body, side: CaptureSide) -> tuple[Any, Problem | None]:
    """A message; None where there is none, or it cannot be read."""
    what = NAMES[side]
    if not body.parts and body.whole:
        no_message = Problem(f"{what} has no message", ("request", "no_input"))
        return None, None if side == "response" else no_message
    if not body.whole:
        kept = sum(map(len, body.parts))
        sentence = f"of {what}'s {body.size} bytes only the first {kept} are there"
        return None, missing(body, side, sentence)
    found = parsed(name, body.bytes)
    return found, None if found is not None else Problem(
        f"{what} is no {name}", (side, "unreadable")
    )


def _failure(answer: Any) -> str:
    return answer.message or answer.status or f"status_code {answer.status_code}"


def _mismatch(items: int, results: int) -> Problem | None:
    if items > MOST_INFERENCES:
        sentence = f"{items} input items, over {MOST_INFERENCES}: kept as one inference"
        return Problem(sentence, ("request", "not_divided"))
    if items and results and items != results:
        sentence = f"{results} output items to {items} input items: kept as one inference"
        return Problem(sentence, ("response", "not_divided"))
    if items or not results:
        return None
    return Problem("there are output items and no input items", ("request", "no_input"))


def _inference(files: Mapping[str, bytes], told: Result) -> Inference:
    data, kind = datum_of(files)
    return Inference(
        data=data,
        data_content_type=kind,
        response=told.response,
        ok=told.ok,
        error=told.error or (_NO_ERROR if told.ok is False else None),
    )


def datum_of(files: Mapping[str, bytes]) -> tuple[bytes, str | None]:
    """The only file; else all as JSON by name, texts as they are and others as `{"b64": …}`."""
    if len(files) == 1:
        return next(iter(files.values())), None
    named = {name: text_or_base64(files[name]) for name in sorted(files)}
    return written(named), "application/json"


def _without_output(answer: Any) -> Result:
    """What a failed Run says of every item."""
    if answer is None:
        return Result()
    said = {"status_code": answer.status_code, "status": answer.status, "message": answer.message}
    return Result(response=written({"error": _failure(answer), **said}))


def _together(exchange: Exchange, answer: Any, results: list[Result]) -> Inference:
    """The messages as they came, as one inference."""
    response = None
    if answer is not None:
        response = in_v2([], status_code=answer.status_code, items=[each.files for each in results])
    elif exchange.response.bytes:
        response = written({"body": text_or_base64(exchange.response.bytes)})
    return Inference(data=exchange.request.bytes, data_content_type=_PROTOBUF, response=response)


def _said(results: list[Result]) -> list[Problem]:
    return [each.problem for each in results if each.problem][:3]


def _task_type(results: list[Result], first: Inference) -> str | None:
    """What a result says that it is; of classes alone, the datum tells texts from images."""
    named = next((each.task_type for each in results if each.task_type), None)
    if named or not any(each.has_classes for each in results):
        return named
    return task_type_of_classes(first.data or b"")


def _standard(request: Any, answer: Any) -> dict[str, Any]:
    told = {} if answer is None else {"status_code": answer.status_code}
    if request is None:
        return told
    # Metadata of every inference: a name that only some items have may tell of their persons.
    names = [set(item.input) for item in request.inputs]
    shared = sorted(set.intersection(*names)) if names else []
    flags = {"detect_drift": request.detect_drift, "explain": request.explain}
    return {**told, **flags, "input_files": shared}
