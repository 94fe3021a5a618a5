"""One request of a stream is erased: the others stay as they were, and nothing tells of it."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proxy_process import upstream
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.minio import S3
from tests.servers.waiting import wait_until
from tests.upstreams.asking import V2, Clients
from tests.upstreams.model_servers import Triton

from .conftest import run_line
from .real_line import RealLine, read_objects

pytestmark = [pytest.mark.real_upstreams, pytest.mark.real_triton]
WORDS = {"tA": b"apple", "tB": b"banana", "tC": b"cherry"}
INFERENCES = "/models/words/inferences"
KINDS = ("data", "response", "metadata")


@pytest.fixture
def line(
    service_environment: MakeEnvironment,
    topic: MakeTopic,
    minio_server: S3,
    bucket: str,
    triton: Triton,
    tmp_path: Path,
) -> Iterator[RealLine]:
    """A proxy before Triton, and behind it all that indexes, answers and erases."""
    environment = service_environment(KAFKA_TOPIC=topic(), KAFKA_REPORTS_TOPIC=topic())
    upstreams = {"triton": [upstream("triton", "v2-grpc", grpc=triton.grpc)]}
    with run_line(environment, tmp_path, upstreams, minio_server, bucket, "retention") as running:
        yield running


def request(clients: Clients, name: str, word: bytes) -> bytes:
    """A request of one word, with metadata about it."""
    about = [{"key": "subject", "type": "string", "value": f"subject of {name}"}]
    contents = {"bytes_contents": [base64.b64encode(word).decode()]}
    request_fields = {
        "model_name": "words",
        "id": name,
        "parameters": {"metadata": {"string_param": json.dumps(about)}},
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "contents": contents}],
    }
    return clients.encode("ModelInferRequest", request_fields)


def find(line: RealLine, name: str) -> httpx.Response:
    return httpx.get(f"{line.api}{INFERENCES}/{name}", timeout=120)


def erase(line: RealLine, name: str) -> None:
    """Erase an inference by its id, and wait for the end of the erasure."""
    answer = httpx.delete(f"{line.api}{INFERENCES}/{name}", timeout=120)
    assert answer.status_code == 202, answer.text
    url = f"{line.api}/erasures/{answer.json()['id']}"

    def is_over() -> bool:
        erasure = httpx.get(url, timeout=120).json()
        assert erasure["state"] != "failed", erasure
        return erasure["state"] in {"deleted", "certified"}

    wait_until(is_over, seconds=180, what=f"the erasure of {name}")


def list_keys(line: RealLine, item: Mapping[str, Any]) -> set[str]:
    prefix = f"s3://{line.bucket}/"
    return {item[f"{kind}_storage_key"].removeprefix(prefix) for kind in KINDS}


def test_one_request_of_a_stream_is_erased(line: RealLine, clients: Clients) -> None:
    messages = [request(clients, *word) for word in WORDS.items()]
    called = clients.call(line.proxies["triton"].grpc, f"{V2}/ModelStreamInfer", *messages)
    assert called.code == "OK"
    line.captured("words", len(WORDS))
    items = {name: find(line, name).json() for name in WORDS}
    ids_and_counts = {name: (item["inference_id"], item["count"]) for name, item in items.items()}
    assert ids_and_counts == {name: (name, 1) for name in WORDS}
    again = [
        clients.decode("ModelInferRequest", *rebuilt.messages) for rebuilt in line.again("words")
    ]
    sent = [clients.decode("ModelInferRequest", message) for message in messages]
    assert sorted(again, key=lambda each: each["id"]) == sorted(sent, key=lambda each: each["id"])
    before = read_objects(line.s3, line.bucket)

    erase(line, "tB")

    gone = list_keys(line, items["tB"])
    assert len(gone) == len(KINDS)
    after = read_objects(line.s3, line.bucket)
    assert after == {key: content for key, content in before.items() if key not in gone}
    assert not [key for key, content in after.items() if b"tB" in content or b"banana" in content]
    assert find(line, "tB").status_code == 404
    remaining = line.captured("words", 2)
    assert [remaining_item["inference_id"] for remaining_item in remaining] == ["tA", "tC"]
    assert [line.blob(item, "data") for item in remaining] == [WORDS["tA"], WORDS["tC"]]
    assert "subject of tB" not in json.dumps(remaining)
