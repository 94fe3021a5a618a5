"""Whatever a model server's OpenAPI allows and forbids: it is answered the same through the proxy.

MLServer publishes the Open Inference Protocol's, with its own additions; KServe what it serves.
"""

import asyncio
import re
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from inference_store.proxy.capture.ids import ID_HEADER
from tests.openapi_operations import Case, Operation, read_operations
from tests.properties import examples
from tests.proxy_process import Proxy
from tests.upstreams.asking import Answered, Asked, by_socket
from tests.upstreams.compare import differences
from tests.upstreams.kserve import KServe
from tests.upstreams.mlserver import MLServer

pytestmark = pytest.mark.real_upstreams
# Answers that no request differs in: compressed ones say when they were, and made-up ids vary.
_PLAIN = {"Accept-Encoding": "identity"}
_ID = "known"
_UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CHANGES = re.compile("/metrics$|/v2/repository/models/")
BOTH = pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@BOTH
def test_mlserver(mlserver: MLServer, before_mlserver: Proxy, mode: GenerationMode) -> None:
    url = f"{before_mlserver.url}/v2/docs/dataplane.json"
    operations = check_answers_alike(url, mlserver.http, before_mlserver, ["echo", "digits"], mode)
    assert operations == 15


@pytest.mark.real_kserve
@BOTH
def test_kserve(kserve: KServe, before_kserve: Proxy, mode: GenerationMode) -> None:
    url = f"{before_kserve.url}/openapi.json"
    assert check_answers_alike(url, kserve.http, before_kserve, ["sums"], mode) >= 10


def check_answers_alike(
    document: str, direct: str, proxy: Proxy, models: list[str], mode: GenerationMode
) -> int:
    """Ask both, an operation of the document after the other; how many there were."""
    schema = schemathesis.openapi.from_dict(_repair(httpx.get(document, timeout=120).json()))
    operations = list(read_operations(schema))
    for operation in operations:
        # nothing can be wrong in a request without a body
        if mode is GenerationMode.POSITIVE or operation.body:
            _compare_operation(operation, direct, proxy.http, models, mode)
    assert httpx.get(f"{proxy.url}/v2/health/ready", timeout=120).status_code == 200
    return len(operations)


def _repair(document: Any) -> Any:
    """Remove MLServer's type `bytes`, which JSON has not, and what changes the next answer."""
    if isinstance(document, list):
        return [_repair(child) for child in document if child != {"type": "bytes"}]
    if isinstance(document, dict):
        members = {name: child for name, child in document.items() if not _CHANGES.match(name)}
        return {name: _repair(child) for name, child in members.items()}
    return document


def _compare_operation(
    operation: Operation, direct: str, proxied: str, models: list[str], mode: GenerationMode
) -> None:
    @settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), model=st.sampled_from([None, *models]))
    def ask(case: Case, model: str | None) -> None:
        if model is not None and "model_name" in (case.path_parameters or {}):
            case.path_parameters["model_name"] = model
        if isinstance(case.body, dict) and not case.body.get("id"):
            case.body["id"] = _ID
        request = write_request(case)
        served, passed = asyncio.run(_send_to_both(request, direct, proxied))
        assert passed is not None, request
        # it dropped the connection, or repeats an id in a header that HTTP cannot write
        if served is None or any(_UNWRITABLE.search(value) for _, value in served.headers):
            assert passed.status == 502
        else:
            assert differences(served, passed, besides={ID_HEADER}) == []

    ask()


async def _send_to_both(call: Asked, *addresses: str) -> list[Answered | None]:
    return [await _find_answer(address, call) for address in addresses]


async def _find_answer(address: str, call: Asked) -> Answered | None:
    try:
        return await by_socket(address, call)
    except ConnectionError:
        return None


def write_request(case: Case) -> Asked:
    """Return the case as it is to be sent."""
    arguments = case.as_transport_kwargs(base_url="http://models", headers=_PLAIN)
    names = {"method", "url", "params", "headers", "cookies", "data", "json", "files"}
    ready = requests.Request(**{k: v for k, v in arguments.items() if k in names}).prepare()
    body = ready.body or b""
    sent = body.encode() if isinstance(body, str) else body
    assert isinstance(sent, bytes)  # neither a file nor an iterator
    headers = [(name, _decode(value)) for name, value in ready.headers.items()]
    return Asked(
        str(ready.method),
        ready.path_url,
        [("Host", "models"), *headers],
        sent,
    )


def _decode(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
