"""The smoke test through a proxy: a call is captured, indexed, found through the api, and
erased."""

import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from .capture import MODEL
from .publish import Failed, Say, erase, wait_indexed
from .rest import Rest

_TIMEOUT_SECONDS = 60.0
# The proxy's own answers about a model server that is unavailable.
_AWAY = frozenset({502, 503, 504})
# For an unknown model: any model server refuses it, and no model is troubled.
_PATH = f"/v2/models/{MODEL}/infer"
_REQUEST = {
    "inputs": [{"name": "smoke", "shape": [1], "datatype": "BYTES", "data": ["Anybody there?"]}]
}


@dataclass(frozen=True, slots=True)
class Call:
    """The request that is sent through a proxy, and where.

    Without `request` the model server may answer what it likes; with one it must answer well.
    """

    proxy: str
    path: str = ""
    request: Any = None
    model: str = MODEL
    """The model's id in the store."""
    tls: ssl.SSLContext | None = None


def run_steps_through_proxy(call: Call, api: Rest, *, seconds: float, say: Say) -> None:
    """Run each step once, and report it as it ends. Raises Failed and Refused."""
    name = f"smoke-{uuid4()}"
    status = _send_call(call, name)
    say(f"the call {name} went through the proxy at {call.proxy}: its answer has status {status}")
    began = time.monotonic()
    inference = wait_indexed(api, call.model, name, seconds=seconds)
    if inference.get("http_status") != status:
        raise Failed(
            f"{name} was answered {status}, and is stored as {inference.get('http_status')}"
        )
    say(f"it is captured and indexed: {time.monotonic() - began:.1f} s after the answer")
    erase(api, call.model, name)
    say("it is hidden again, and its erasure is on its way")


def _send_call(call: Call, name: str) -> int:
    """Return the answer's status."""
    body = orjson.dumps(_REQUEST if call.request is None else call.request)
    headers = {"Content-Type": "application/json", "Chariot-Inference-Base-ID": name}
    address = call.proxy.rstrip("/") + (call.path or _PATH)
    request = urllib.request.Request(address, method="POST", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=call.tls) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        words = error.read().decode("utf-8", "replace")[:500]
        if error.code in _AWAY or call.request is not None:
            raise Failed(f"POST {address} answered {error.code}: {words}") from error
        return error.code
    except OSError as error:
        raise Failed(f"the proxy at {call.proxy} does not answer: {error}") from error
