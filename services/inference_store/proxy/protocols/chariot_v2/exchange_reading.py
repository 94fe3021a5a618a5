"""Reads an exchange of chariot-v2: one inference per datum."""

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.answers import answer_json, find_error, find_failure
from inference_store.proxy.protocols.documents import (
    Document,
    media_type,
    parsed,
    read_bytes,
)
from inference_store.proxy.protocols.problems import Problem, join_problems
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .request import LINES, RequestItem, read_items, split_lines


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference per line if there is an answer line for each, or one error for all; else a
    single inference."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    answer = read_bytes(exchange.response, exchange.response_headers, "response")
    items = read_items(request, exchange.request_headers)
    by_line = media_type(exchange.request_headers) == LINES and not _is_for_all(exchange, answer)
    answers = _parse_lines(answer) if by_line else [_parse_answer(answer)] * len(items)
    mismatch = _find_mismatch(len(items), len(answers))
    if mismatch:
        whole = _parse_answer(answer) if not by_line else Document(raw=answer.raw, problem=mismatch)
        inferences = [_join_inferences(request, items, whole)]
    else:
        pairs = zip(items, answers, strict=True)
        inferences = [_build_inference(item, line, alone=by_line) for item, line in pairs]
    ok, error = (None, None) if by_line else find_failure(exchange, answers[0])
    prompts = items[0].prompts
    alike = prompts and all(item.prompts == prompts for item in items)
    request_problems = [item.problem for item in items if item.problem][:3]
    answer_problems = [line.problem for line in answers if line.problem][:1]
    return Reading(
        inferences=inferences,
        action=items[0].action,
        standard={"prompts": prompts} if alike else {},
        ok=ok,
        error=error,
        problem=join_problems([*request_problems, *answer_problems, mismatch]),
    )


def _is_for_all(exchange: Exchange, answer: Document) -> bool:
    """Return whether one answer is for all lines: it failed, is missing, or cannot be read."""
    failed = (exchange.http_status or 0) >= 400
    return failed or answer.problem is not None or not answer.raw.strip()


def _parse_lines(answer: Document) -> list[Document]:
    return [
        parsed(line, "response", f"line {number} of the answer")
        for number, line in split_lines(answer.raw)
    ]


def _parse_answer(answer: Document) -> Document:
    return answer if answer.problem or not answer.raw.strip() else parsed(answer.raw, "response")


def _find_mismatch(request_lines: int, answer_lines: int) -> Problem | None:
    if request_lines != answer_lines:
        sentence = f"{answer_lines} answer lines to {request_lines} lines: kept as one inference"
        return Problem(sentence, ("response", "not_divided"))
    if request_lines > MOST_INFERENCES:
        sentence = f"{request_lines} lines, over {MOST_INFERENCES}: kept as one inference"
        return Problem(sentence, ("request", "not_divided"))
    return None


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
