"""An exchange of chat or completions, read: text in, text out."""

from typing import Any, Final

from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.answers import as_it_came, failure, in_v2, output
from inference_store.proxy.protocols.documents import read_document
from inference_store.proxy.protocols.problems import joined
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .answer import Answered, answered
from .request import Asked, asked

_IMAGES: Final = "image_text_to_text"
_TEXTS: Final = "text_generation"
# What a choice's text is called. The prompt is no part of an answer: it goes where the input goes.
_ANSWER: Final = "answer"
_TEXT: Final = "generated_text"


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """One inference; one a prompt where there is a list of prompts and answers to each."""
    question = asked(read_document(exchange.request, exchange.request_headers, "request"))
    answer = answered(exchange)
    task_type = _IMAGES if question.is_image else _TEXTS
    ok, error = failure(exchange, answer.document)
    name = _ANSWER if task_type_of(model.task_type or task_type).name == _IMAGES else _TEXT
    return Reading(
        inferences=_inferences(question, answer, name),
        model=question.model or answer.said("model"),
        response_id=answer.said("id"),
        action=call.operation or "completion",
        task_type=task_type,
        ok=ok,
        error=error,
        standard=_standard(question, answer),
        problem=joined([question.problem, answer.problem]),
    )


def _standard(question: Asked, answer: Answered) -> dict[str, Any]:
    found: dict[str, Any] = {"stream": question.stream, **answer.standard()}
    if question.attached and question.prompt:
        found["prompts"] = [question.prompt]
    return found


def _inferences(question: Asked, answer: Answered, name: str) -> list[Inference]:
    envelopes = [question.metadata] if question.metadata else []
    each, left = divmod(len(answer.choices), len(question.data))
    if 1 < len(question.data) <= MOST_INFERENCES and not left:
        responses = [
            _response(question, answer, name, slice(first * each, (first + 1) * each))
            for first in range(len(question.data))
        ]
        return [
            Inference(data=data, data_content_type=kind, response=response, metadata=envelopes)
            for (data, kind), response in zip(question.data, responses, strict=True)
        ]
    data, kind = question.together
    response = _response(question, answer, name, slice(None))
    return [Inference(data=data, data_content_type=kind, response=response, metadata=envelopes)]


def _response(question: Asked, answer: Answered, name: str, which: slice) -> bytes | None:
    """The choices about one datum; with all that was answered, where that is about it alone."""
    if not answer.choices and not answer.kept.get("chunks"):
        return as_it_came(answer.document)
    choices = zip(answer.texts[which], answer.choices[which], strict=True)
    elements = [{name: text, **said} for text, said in choices]
    whole = answer.kept if which == slice(None) else {}
    named = {"model_name": question.model or answer.said("model"), "id": answer.said("id")}
    return in_v2([output("choices", elements)], **named, **whole)
