"""MLflow's and TorchServe's paths, whose bodies may be anything."""

import re
from typing import Final

from inference_store.proxy.exchange import Exchange
from inference_store.proxy.protocols import kserve_v1, raw

from .documents import read_document
from .openai import OPENAI
from .protocol import Call, Model, Protocol, Reading


def read_invocation(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read a chat as OpenAI's, `instances` as KServe V1, and any other body as it is."""
    document = read_document(exchange.request, exchange.request_headers, "request").value
    members = document if isinstance(document, dict) else {}
    if isinstance(members.get("messages"), list):
        return OPENAI.read(exchange, call, model)
    is_list = isinstance(members.get("instances"), list)
    return (kserve_v1.read if is_list else raw.read)(exchange, call, model)


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
    read=raw.read,
)
