"""KServe's and TensorFlow Serving's first protocol: `instances` in, `predictions` out.

An instance is a datum where there is a prediction to each, else the request is one datum. The
datum is the bytes of an instance's base64 (`{"b64": …}`, alone or as its only member that is such;
for images any string that is base64), its text, or its JSON.
"""

import re
from typing import Final
from urllib.parse import unquote

from inference_store.proxy.base64_text import from_base64, from_data_url
from inference_store.proxy.exchange import Exchange
from inference_store.store.json_text import Json
from inference_store.store.task_types import task_type_of

from .answers import as_it_came, failure, in_v2, output
from .documents import JSON, Document, data_of, read_document
from .protocol import Call, Inference, Model, Protocol, Reading
from .v2.splitting import MOST_INFERENCES

_PATH: Final = re.compile(
    r"/v1/models/([^/]+?)(?:/versions/([^/:]+?))?(?::|%3[Aa])(?:predict|explain)/?"
)
_EXPLAIN: Final = re.compile(r"(?::|%3[Aa])explain/?")
_ANSWERS: Final = ("predictions", "explanations")


def recognise(protocol: Protocol, method: str, path: str) -> Call | None:
    """`:predict` and `:explain` of a model, with a version or without."""
    found = _PATH.fullmatch(path) if method == "POST" else None
    if found is None:
        return None
    version = None if found[2] is None else unquote(found[2])
    return Call(protocol, "infer", unquote(found[1]), version)


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """An inference an instance, where there is a prediction to each or the call failed."""
    task_type = task_type_of(model.task_type)
    request = read_document(exchange.request, exchange.request_headers, "the request")
    answer = read_document(
        exchange.response, exchange.response_headers, "the answer", exact=task_type.exact
    )
    ok, error = failure(exchange, answer)
    instances = _list(request, ("instances",))
    data, problem = _data(request, instances, vision=task_type.vision)
    responses, mismatch = _responses(answer, len(data), call, failed=error is not None)
    if mismatch and len(data) > 1:
        data, responses = [(request.raw, JSON)], [as_it_came(answer)]
    return Reading(
        inferences=[
            Inference(data=datum, data_content_type=kind, response=response)
            for (datum, kind), response in zip(data, responses, strict=True)
        ],
        action="explain" if _EXPLAIN.search(exchange.path) else "predict",
        ok=ok,
        error=error,
        problem="; ".join(filter(None, (problem, answer.problem, mismatch))) or None,
    )


def _list(document: Document, names: tuple[str, ...]) -> list[Json]:
    """The first list of one of these names; empty: there is none."""
    value = document.value if isinstance(document.value, dict) else {}
    return next((value[name] for name in names if isinstance(value.get(name), list)), [])


def _data(
    request: Document, instances: list[Json], *, vision: bool
) -> tuple[list[tuple[bytes, str | None]], str | None]:
    if 0 < len(instances) <= MOST_INFERENCES:
        return [_datum(instance, vision) for instance in instances], None
    if instances:
        return [(request.raw, JSON)], f"{len(instances)} instances are kept as one inference"
    problem = request.problem or "the request has no list `instances`: its body is the datum"
    return [(request.raw, None if request.problem else JSON)], problem


def _responses(
    answer: Document, count: int, call: Call, *, failed: bool
) -> tuple[list[bytes | None], str | None]:
    """An answer to each datum; and what is wrong with their number."""
    predictions = _list(answer, _ANSWERS)
    if count == 1 or failed or answer.problem or not answer.raw.strip():
        return [as_it_came(answer)] * count, None
    if len(predictions) != count:
        problem = f"{len(predictions)} predictions to {count} instances: kept as one inference"
        return [], problem
    named = {"model_name": call.model, "model_version": call.version}
    return [in_v2([output("predictions", [each])], **named) for each in predictions], None


def _datum(instance: Json, vision: bool) -> tuple[bytes, str | None]:
    found = _base64_in(instance, vision)
    if found is not None:
        return found
    return data_of(instance)


def _base64_in(instance: Json, vision: bool) -> tuple[bytes, str | None] | None:
    """The bytes of the only base64 in an instance."""
    if type(instance) is str:
        return _from_text(instance) if vision else from_data_url(instance)
    if not isinstance(instance, dict):
        return None
    if type(instance.get("b64")) is str:
        return _from_text(instance["b64"])
    inside = [value["b64"] for value in instance.values() if _is_base64(value)]
    if not inside and vision:
        inside = [value for value in instance.values() if type(value) is str and _long(value)]
    return _from_text(inside[0]) if len(inside) == 1 else None


def _is_base64(value: Json) -> bool:
    return isinstance(value, dict) and type(value.get("b64")) is str


def _long(text: str) -> bool:
    """No name or label, but an image: the smallest have more bytes than that."""
    return len(text) > 64


def _from_text(text: str) -> tuple[bytes, str | None] | None:
    found = from_data_url(text)
    if found is None and (raw := from_base64(text)) is not None:
        found = (raw, None)
    return found


KSERVE_V1: Final = Protocol(
    name="kserve-v1",
    title="KServe V1",
    transport="rest",
    recognise=recognise,
    read=read,
)
