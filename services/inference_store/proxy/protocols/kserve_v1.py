"""KServe's and TensorFlow Serving's first protocol: `instances` in, `predictions` out.

Each instance is a datum if there is a prediction for each, else the request is one datum. The datum
is the bytes of an instance's base64 (`{"b64": …}`, alone or as the only such member; for images any
string that is base64), its text, or its JSON as it was written.
"""

import re
from typing import Final

from inference_store.inference.json_text import Json
from inference_store.inference.task_types import task_type_of
from inference_store.proxy.exchange import Exchange, from_data_url, from_text

from .documents import (
    JSON,
    Document,
    answer_json,
    data_at,
    elements,
    find_failure,
    member,
    output,
    read_document,
    v2_answer_json,
)
from .protocol import (
    MOST_INFERENCES,
    Call,
    Inference,
    Model,
    Problem,
    Protocol,
    Reading,
    find_mismatch,
    join_problems,
    unreadable,
)

_ANSWERS: Final = ("predictions", "explanations")


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read one inference per instance, if there is a prediction for each or the call failed."""
    task_type = task_type_of(model.task_type)
    request = read_document(exchange.request, exchange.request_headers, "request")
    answer = read_document(
        exchange.response, exchange.response_headers, "response", exact=task_type.exact
    )
    ok, error = find_failure(exchange, answer)
    instances = _find_list(request, ("instances",))
    data, problem = _read_data(request, instances, vision=task_type.vision)
    responses, mismatch = _read_responses(answer, len(data), call, failed=error is not None)
    if mismatch and len(data) > 1:
        data, responses = [(request.raw, JSON)], [answer_json(answer)]
    return Reading(
        inferences=[
            Inference(data=datum, data_content_type=kind, response=response)
            for (datum, kind), response in zip(data, responses, strict=True)
        ],
        items="instances",
        action=call.operation or "predict",
        ok=ok,
        error=error,
        problem=join_problems([problem, answer.problem, mismatch]),
    )


def _find_list(document: Document, names: tuple[str, ...]) -> list[Json]:
    """Return the first list with one of these names; empty if there is none."""
    value = document.value if isinstance(document.value, dict) else {}
    return next((value[name] for name in names if isinstance(value.get(name), list)), [])


def _read_data(
    request: Document, instances: list[Json], *, vision: bool
) -> tuple[list[tuple[bytes, str | None]], Problem | None]:
    if 0 < len(instances) <= MOST_INFERENCES:
        raw = request.raw
        spans = elements(raw, member(raw, "instances"), len(instances))
        pairs = zip(instances, spans, strict=True)
        return [
            _find_base64(value, vision) or data_at(raw, span, value) for value, span in pairs
        ], None
    if instances:
        return [(request.raw, JSON)], find_mismatch(len(instances), 1, "instances", "")
    sentence = "the request has no list `instances`: its body is the datum"
    problem = request.problem or unreadable(sentence)
    return [(request.raw, None if request.problem else JSON)], problem


def _read_responses(
    answer: Document, count: int, call: Call, *, failed: bool
) -> tuple[list[bytes | None], Problem | None]:
    predictions = _find_list(answer, _ANSWERS)
    if count == 1 or failed or answer.problem or not answer.raw.strip():
        return [answer_json(answer)] * count, None
    if mismatch := find_mismatch(count, len(predictions), "instances", "predictions"):
        return [], mismatch
    model_names = {"model_name": call.model, "model_version": call.version}
    return [
        v2_answer_json([output("predictions", [prediction])], **model_names)
        for prediction in predictions
    ], None


def _find_base64(instance: Json, vision: bool) -> tuple[bytes, str | None] | None:
    if type(instance) is str:
        return from_text(instance) if vision else from_data_url(instance)
    if not isinstance(instance, dict):
        return None
    values = [instance, *instance.values()]
    coded = [value.get("b64") for value in values if isinstance(value, dict)]
    texts = [text for text in coded if type(text) is str]
    if type(instance.get("b64")) is str:
        return from_text(texts[0])
    if not texts and vision:
        texts = [text for text in instance.values() if type(text) is str and len(text) > _LABEL]
    return from_text(texts[0]) if len(texts) == 1 else None


_LABEL: Final = 64
"""The most characters of a name or a label: even the smallest images are longer."""


KSERVE_V1: Final = Protocol(
    name="kserve-v1",
    transport="rest",
    calls="`:predict` and `:explain` of `/v1/models/…`",
    datum="each instance that has a prediction of its own: bytes of its base64, text, or JSON",
    answer="to one instance: as it came; to several: each prediction as V2's JSON",
    path=re.compile(
        r"/v1/models/(?P<model>[^/]+?)(?:/versions/(?P<version>[^/:]+?))?"
        r"(?::|%3A)(?P<operation>predict|explain)/?"
    ),
    read=read,
)
