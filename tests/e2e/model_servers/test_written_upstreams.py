"""The engine, the container and the stub that were written for the tests answer as they should."""

import base64
import json
from typing import Any

import httpx
import pytest

from tests.upstreams.asking import WAYS, Asked, by_socket
from tests.upstreams.clients import OMI, Clients
from tests.upstreams.pictures import photograph
from tests.upstreams.written import ChariotEngine, OmiContainer, Stub

pytestmark = pytest.mark.real_upstreams


def post(url: str, body: Any) -> Any:
    answer = httpx.post(url, json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_json_lines_and_raw(chariot_engine: ChariotEngine) -> None:
    url, image = f"{chariot_engine.url}/infer", photograph()
    record = {"input": base64.b64encode(image).decode(), "parameters": {}}
    result = post(url, record)["output"]
    assert result[0]["label"] == "face"
    lines = f"{json.dumps(record)}\n{json.dumps(record)}\n"
    answer = httpx.post(
        url, content=lines, headers={"Content-Type": "application/jsonl"}, timeout=120
    )
    assert [json.loads(line) for line in answer.text.splitlines()] == [{"output": result}] * 2
    headers = {"Content-Type": "image/png", "chariot-inference-parameters": '{"threshold": 1}'}
    assert httpx.post(url, content=image, headers=headers, timeout=120).json() == {"output": []}


def run(clients: Clients, container: OmiContainer, *texts: str, **fields: Any) -> Any:
    inputs = [{"input": {"input.txt": base64.b64encode(t.encode()).decode()}} for t in texts]
    request = clients.encode("RunRequest", {"inputs": inputs, **fields})
    called = clients.call(container.address, f"{OMI}/Run", request)
    assert called.code == "OK"
    return clients.decode("RunResponse", called.responses[0])


def test_each_item_has_its_own_result(clients: Clients, omi_container: OmiContainer) -> None:
    ran = run(clients, omi_container, "great thanks", "", explain=True, detect_drift=True)
    assert ran["status_code"] == 200
    good, failed = ran["outputs"]
    results = json.loads(base64.b64decode(good["output"]["results.json"]))
    assert results["result"]["classPredictions"][0] == {"class": "friendly", "score": 0.75}
    assert set(results) == {"modelType", "result", "explanation", "drift"}
    assert "success" not in failed
    assert base64.b64decode(failed["output"]["error"]) == b"input.txt is missing or empty"


def test_failures_are_in_the_answer(clients: Clients, omi_container: OmiContainer) -> None:
    assert run(clients, omi_container, "", "")["status_code"] == 422
    assert run(clients, omi_container, *["good"] * 5)["status_code"] == 422
    assert run(clients, omi_container, "fail the run")["status_code"] == 500


@pytest.mark.parametrize(("drops", "code"), [({}, "OK"), ({"OMI_DROPS": "1"}, "UNAVAILABLE")])
def test_it_ends_by_shutdown(clients: Clients, drops: dict[str, str], code: str) -> None:
    with OmiContainer(**drops) as container:
        assert clients.call(container.address, f"{OMI}/Shutdown", b"").code == code
        assert container.exit_code() == 0


def test_a_chat_is_streamed(stub: Stub) -> None:
    body = {"stream": True, "messages": [{"role": "user", "content": "a b"}]}
    events = httpx.post(f"{stub.url}/v1/chat/completions", json=body, timeout=120).text.split(
        "\n\n"
    )
    assert [json.loads(event[6:])["choices"][0]["delta"] for event in events[:-2]] == [
        {"content": "b"},
        {"content": "a"},
        {},
    ]
    assert events[-2:] == ["data: [DONE]", ""]


def test_instances_become_predictions(stub: Stub) -> None:
    answer = post(f"{stub.url}/v1/models/sums:predict", {"instances": [[1, 2], [3]]})
    assert answer == {"predictions": [3, 3]}


async def test_the_mirror_shows_what_came(stub: Stub, way: str) -> None:
    request = Asked("POST", "/%41?b=%20", [("X-Odd", "é"), ("Content-Encoding", "gzip")], b"\x1f")
    answer = json.loads((await WAYS[way](stub.address, request)).body)
    assert (answer["method"], answer["path"]) == ("POST", "/%41?b=%20")
    assert base64.b64decode(answer["body"]) == b"\x1f"
    assert ["Content-Encoding", "gzip"] in answer["headers"]


async def test_it_breaks_off_as_asked(stub: Stub) -> None:
    body = json.dumps({"stream": True, "prompt": "a b"}).encode()
    cut = Asked("POST", "/v1/completions", [("stub-cut", "part")], body)
    assert (await by_socket(stub.address, cut)).cut
    with pytest.raises(ConnectionError):
        await by_socket(stub.address, Asked("GET", "/", [("stub-cut", "1")]))
