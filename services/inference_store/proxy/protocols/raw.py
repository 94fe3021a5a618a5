"""Calls of unknown protocols, captured as bytes.

Used only if an upstream's configuration names it. The request's body is the datum; the answer stays
unchanged if it is JSON, else it becomes one output `body`: a text, or `{"b64": …}`; over gRPC one
element per message.
"""

import re
from typing import Final

from inference_store.proxy.exchange import Exchange, header
from inference_store.proxy.protocols import kserve_v1
from inference_store.proxy.protocols.documents import (
    answer_json,
    as_json,
    find_failure,
    media_type,
    output,
    read_bytes,
    read_document,
    text_or_base64,
    v2_answer_json,
)
from inference_store.proxy.protocols.openai import OPENAI
from inference_store.proxy.protocols.protocol import (
    Call,
    Inference,
    Model,
    Protocol,
    Reading,
    describe_missing,
    join_problems,
)


def read(exchange: Exchange, call: Call, _model: Model) -> Reading:
    """Read one inference: the body and the answer."""
    request = read_bytes(exchange.request, exchange.request_headers, "request")
    answer = read_bytes(exchange.response, exchange.response_headers, "response")
    kind = media_type(exchange.response_headers)
    response = None
    if not answer.problem and (kind == "application/json" or kind.endswith("+json")):
        answer = as_json(answer, "response")
        response = answer_json(answer)
    elif answer.raw or exchange.response.size:
        response = v2_answer_json([output("body", [text_or_base64(answer.raw)])])
    ok, error = find_failure(exchange, answer)
    inference = Inference(
        data=request.raw,
        data_content_type=media_type(exchange.request_headers) or None,
        response=response,
    )
    return Reading(
        inferences=[inference],
        action=call.operation or f"{exchange.method} {exchange.path}",
        standard={"response_content_type": kind} if kind else {},
        ok=ok,
        error=error,
        problem=join_problems([request.problem, answer.problem]),
    )


def read_grpc(exchange: Exchange, _call: Call, _model: Model) -> Reading:
    """Read one inference: the joined messages of the request, and the messages of the answer."""
    messages = [text_or_base64(message) for message in exchange.response.parts]
    response = v2_answer_json([output("messages", messages)]) if messages else None
    datum = exchange.request.bytes
    request_problem = describe_missing(exchange.request, "request")
    return Reading(
        inferences=[Inference(data=datum, data_content_type="application/grpc", response=response)],
        action=exchange.method,
        error=header(exchange.response_trailers, "grpc-message"),
        problem=join_problems([request_problem, describe_missing(exchange.response, "response")]),
    )


RAW: Final = Protocol(
    name="raw",
    transport="rest",
    calls="every other REST call",
    datum="the body",
    answer="as it came, or one output `body`",
    path=re.compile(".*", re.DOTALL),
    methods=(),
    read=read,
)
RAW_GRPC: Final = Protocol(
    name="raw-grpc",
    transport="grpc",
    calls="every other gRPC call",
    datum="the messages",
    answer="one output `messages`, an element each",
    path=re.compile(".*", re.DOTALL),
    read=read_grpc,
)


# MLflow's and TorchServe's paths, whose bodies may be anything.


def read_invocation(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read a chat as OpenAI's, `instances` as KServe V1, and any other body as it is."""
    document = read_document(exchange.request, exchange.request_headers, "request").value
    members = document if isinstance(document, dict) else {}
    if isinstance(members.get("messages"), list):
        return OPENAI.read(exchange, call, model)
    is_list = isinstance(members.get("instances"), list)
    return (kserve_v1.read if is_list else read)(exchange, call, model)


MLFLOW: Final = Protocol(
    name="mlflow",
    transport="rest",
    calls="`POST /invocations`, as MLflow and SageMaker serve it",
    datum="the body; `instances` as for `kserve-v1`, `messages` as for `openai`",
    answer="as it came, or as for those",
    path=re.compile("/(?P<operation>invocations)/?"),
    read=read_invocation,
)
TORCHSERVE: Final = Protocol(
    name="torchserve",
    transport="rest",
    calls="`POST` or `PUT` of `/predictions/…`, `/explanations/…`, `/wfpredict/…`",
    datum="the body",
    answer="as it came, or one output `body`",
    path=re.compile(
        "/(?P<operation>predictions|explanations|wfpredict)"
        "/(?P<model>[^/]+)(?:/(?P<version>[^/]+))?/?"
    ),
    methods=("POST", "PUT"),
    read=read,
)
