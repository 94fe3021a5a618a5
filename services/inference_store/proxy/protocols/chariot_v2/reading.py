"""An exchange of chariot-v2, read: an inference a datum."""

from typing import Any

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.answers import as_it_came, error_in, failure
from inference_store.proxy.protocols.documents import (
    Document,
    media_type,
    parsed,
    read_bytes,
)
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading

from .request import LINES, Asked, asked, lines_of

_WHAT = "the answer"


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """An inference a line where there is an answer line to each, else one."""
    request = read_bytes(exchange.request, exchange.request_headers, "the request")
    answer = read_bytes(exchange.response, exchange.response_headers, _WHAT)
    questions = asked(request, exchange.request_headers)
    if media_type(exchange.request_headers) == LINES and not _is_error(exchange, answer):
        inferences, problem = _line_by_line(request, questions, answer)
        return _reading(questions, inferences, problem)
    document = answer
    if not answer.problem and answer.raw.strip():
        document = parsed(answer.raw, _WHAT)
    ok, error = failure(exchange, document)
    response = as_it_came(document)
    inferences = [_inference(each, response) for each in questions]
    return _reading(questions, inferences, document.problem, ok=ok, error=error)


def _is_error(exchange: Exchange, answer: Document) -> bool:
    """One answer about all lines: it failed, or there is none."""
    return (exchange.http_status or 0) >= 400 or not answer.raw.strip()


def _reading(
    questions: list[Asked], inferences: list[Inference], problem: str | None, **said: Any
) -> Reading:
    problems = [each.problem for each in questions if each.problem][:3]
    prompts = questions[0].prompts
    alike = prompts and all(each.prompts == prompts for each in questions)
    return Reading(
        inferences=inferences,
        action=questions[0].action,
        standard={"prompts": prompts} if alike else {},
        problem="; ".join(filter(None, (*problems, problem))) or None,
        **said,
    )


def _line_by_line(
    request: Document, questions: list[Asked], answer: Document
) -> tuple[list[Inference], str | None]:
    lines = [] if answer.problem else lines_of(answer.raw)
    if len(lines) == len(questions):
        answers = [parsed(line, f"line {number} of the answer") for number, line in lines]
        pairs = zip(questions, answers, strict=True)
        inferences = [_inference(each, as_it_came(said), said) for each, said in pairs]
        return inferences, next((each.problem for each in answers if each.problem), None)
    problem = answer.problem or (
        f"{len(lines)} answer lines to {len(questions)} lines: kept as one inference"
    )
    whole = Inference(
        data=request.raw,
        data_content_type=LINES,
        response=as_it_came(Document(raw=answer.raw, problem=problem)),
        metadata=[envelope for each in questions for envelope in each.metadata],
    )
    return [whole], problem


def _inference(each: Asked, response: bytes | None, said: Document | None = None) -> Inference:
    error = error_in(said.value) if said else None
    return Inference(
        data=each.data,
        data_content_type=each.content_type,
        response=response,
        metadata=each.metadata,
        ok=None if error is None else False,
        error=error,
    )
