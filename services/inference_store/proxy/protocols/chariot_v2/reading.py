"""An exchange of chariot-v2, read: an inference a datum."""

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.answers import as_it_came, error_in, failure
from inference_store.proxy.protocols.documents import (
    Document,
    media_type,
    parsed,
    read_bytes,
)
from inference_store.proxy.protocols.problems import Problem, joined
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .request import LINES, Asked, asked, lines_of


def read(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """An inference a line where there is an answer line to each, or one error for all; else one."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    answer = read_bytes(exchange.response, exchange.response_headers, "response")
    questions = asked(request, exchange.request_headers)
    by_line = media_type(exchange.request_headers) == LINES and not _is_for_all(exchange, answer)
    answers = _lines(answer) if by_line else [_whole(answer)] * len(questions)
    mismatch = _mismatch(len(questions), len(answers))
    if mismatch:
        whole = _whole(answer) if not by_line else Document(raw=answer.raw, problem=mismatch)
        inferences = [_together(request, questions, whole)]
    else:
        pairs = zip(questions, answers, strict=True)
        inferences = [_inference(each, said, alone=by_line) for each, said in pairs]
    ok, error = (None, None) if by_line else failure(exchange, answers[0])
    prompts = questions[0].prompts
    alike = prompts and all(each.prompts == prompts for each in questions)
    asked_problems = [each.problem for each in questions if each.problem][:3]
    told_problems = [each.problem for each in answers if each.problem][:1]
    return Reading(
        inferences=inferences,
        action=questions[0].action,
        standard={"prompts": prompts} if alike else {},
        ok=ok,
        error=error,
        problem=joined([*asked_problems, *told_problems, mismatch]),
    )


def _is_for_all(exchange: Exchange, answer: Document) -> bool:
    """One answer to all lines: it failed, or there is none, or it cannot be read."""
    failed = (exchange.http_status or 0) >= 400
    return failed or answer.problem is not None or not answer.raw.strip()


def _lines(answer: Document) -> list[Document]:
    return [
        parsed(line, "response", f"line {number} of the answer")
        for number, line in lines_of(answer.raw)
    ]


def _whole(answer: Document) -> Document:
    return answer if answer.problem or not answer.raw.strip() else parsed(answer.raw, "response")


def _mismatch(asked_lines: int, told_lines: int) -> Problem | None:
    if asked_lines != told_lines:
        sentence = f"{told_lines} answer lines to {asked_lines} lines: kept as one inference"
        return Problem(sentence, ("response", "not_divided"))
    if asked_lines > MOST_INFERENCES:
        sentence = f"{asked_lines} lines, over {MOST_INFERENCES}: kept as one inference"
        return Problem(sentence, ("request", "not_divided"))
    return None


def _together(request: Document, questions: list[Asked], answer: Document) -> Inference:
    return Inference(
        data=request.raw,
        data_content_type=LINES,
        response=as_it_came(answer),
        metadata=[envelope for each in questions for envelope in each.metadata],
    )


def _inference(each: Asked, said: Document, *, alone: bool) -> Inference:
    """`alone`: the answer is about this datum, and so is an error in it."""
    error = error_in(said.value) if alone else None
    return Inference(
        data=each.data,
        data_content_type=each.content_type,
        response=as_it_came(said),
        metadata=each.metadata,
        ok=None if error is None else False,
        error=error,
    )
