"""Reads an exchange of a language model."""

from typing import Any, Final

from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols.answers import (
    answer_json,
    find_failure,
    output,
    v2_answer_json,
)
from inference_store.proxy.protocols.documents import read_document
from inference_store.proxy.protocols.problems import join_problems
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Reading
from inference_store.proxy.protocols.usage import read_first_token
from inference_store.proxy.protocols.v2.splitting import MOST_INFERENCES

from .answer import ParsedAnswer, parse_answer
from .request import ParsedRequest, parse_request

_IMAGES: Final = "image_text_to_text"
_TEXTS: Final = "text_generation"
# The name of a choice's text. The prompt is not part of an answer: it belongs to the input.
_VECTOR: Final = "embedding"
_ANSWER: Final = "answer"
_TEXT: Final = "generated_text"


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read one inference; one per prompt if there is a list of prompts with answers for each."""
    request = parse_request(read_document(exchange.request, exchange.request_headers, "request"))
    answer = parse_answer(exchange)
    task_type = _IMAGES if request.is_image else None if call.operation == _VECTOR else _TEXTS
    ok, error = find_failure(exchange, answer.document)
    name = _ANSWER if task_type_of(model.task_type or task_type).name == _IMAGES else _TEXT
    return Reading(
        inferences=_build_inferences(request, answer, name),
        model=request.model or answer.root_text("model"),
        response_id=answer.root_text("id"),
        action=call.operation or "completion",
        task_type=task_type,
        ok=ok,
        error=error,
        standard=_read_standard(exchange, request, answer),
        problem=join_problems([request.problem, answer.problem]),
    )


def _read_standard(
    exchange: Exchange, request: ParsedRequest, answer: ParsedAnswer
) -> dict[str, Any]:
    standard: dict[str, Any] = {"stream": request.stream, **answer.read_standard()}
    if "chunks" in answer.original:
        standard |= read_first_token(exchange)
    if request.attached and request.prompt:
        standard["prompts"] = [request.prompt]
    return standard


def _build_inferences(request: ParsedRequest, answer: ParsedAnswer, name: str) -> list[Inference]:
    envelopes = [request.metadata] if request.metadata else []
    choices_per_prompt, remainder = divmod(len(answer.choices), len(request.data))
    if 1 < len(request.data) <= MOST_INFERENCES and not remainder:
        responses = [
            _build_response(
                request,
                answer,
                name,
                slice(first * choices_per_prompt, (first + 1) * choices_per_prompt),
            )
            for first in range(len(request.data))
        ]
        return [
            Inference(data=data, data_content_type=kind, response=response, metadata=envelopes)
            for (data, kind), response in zip(request.data, responses, strict=True)
        ]
    data, kind = request.together
    response = _build_response(request, answer, name, slice(None))
    return [Inference(data=data, data_content_type=kind, response=response, metadata=envelopes)]


def _build_response(
    request: ParsedRequest, answer: ParsedAnswer, name: str, which: slice
) -> bytes | None:
    """Return the choices about one datum; with the whole answer, if it is about this datum
    alone."""
    whole = answer.original if which == slice(None) else {}
    vectors = [choice[_VECTOR] for choice in answer.choices[which] if _VECTOR in choice]
    if (whole and vectors) or not (answer.choices or answer.original.get("chunks")):
        return answer_json(answer.document)
    names = {"model_name": request.model or answer.root_text("model"), "id": answer.root_text("id")}
    if vectors:
        return v2_answer_json([output(_VECTOR, vectors)], **names)
    choices = zip(answer.texts[which], answer.choices[which], strict=True)
    elements = [{name: text, **rest} for text, rest in choices]
    return v2_answer_json([output("choices", elements)], **names, **whole)
