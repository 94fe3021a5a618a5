"""Each protocol with a real server: from the call to the answered query."""

import asyncio
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grpc
import httpx
import pytest
from sklearn.datasets import load_digits

from inference_store.grpc_messages import message
from tests.integration.proxy.grpc_upstream import INFER, STREAM, call_stream
from tests.proxy_process import upstream
from tests.servers.environment import service_environment
from tests.servers.fixtures import migrate, unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.postgres import Postgres
from tests.upstreams.asking import make_binary
from tests.upstreams.model_servers import MLServer, Triton

from .real_line import RealLine, hash_content, post, read_metadata, run_line

pytestmark = [
    pytest.mark.real_upstreams,
    pytest.mark.real_huggingface,
    pytest.mark.real_triton,
    pytest.mark.real_kserve,
]
LIST = json.dumps([{"key": "frame_number", "type": "int", "value": "9001"}])
MODELS = [
    {"model": "digits", "task_type": "tabular", "project_id": "tests"},
    {"model": "sentiment", "task_type": "text_classification"},
    {"model": "story", "task_type": "text_generation"},
]


def proxied(servers: Mapping[str, Any]) -> Mapping[str, list[Mapping[str, Any]]]:
    """The upstreams of each proxy; the first serves two of them, selected by model."""

    def entry(name: str, *protocols: str, **more: Any) -> dict[str, Any]:
        where = {"url": servers[name].url, "grpc": servers[name].grpc}
        return upstream(name, "v2", "v2-grpc", *protocols, **where, **more)

    return {
        "mlserver": [
            entry("mlserver", models=["digits", "words"]),
            entry("kserve", "kserve-v1", models=["sums"]),
        ],
        "huggingface": [entry("huggingface")],
        "triton": [entry("triton")],
    }


@pytest.fixture(scope="module")
def real_line(
    request: pytest.FixtureRequest,
    postgres_server: Postgres,
    kafka_server: Kafka,
    minio_server: S3,
    tmp_path_factory: pytest.TempPathFactory,
    mlserver: MLServer,  # asked for here: its tests run where others have started these servers
) -> Iterator[RealLine]:
    """The proxies before the real servers, and all that is behind them."""
    database = unique()
    dsn = postgres_server.create_database(database)
    migrate(dsn)
    environment = service_environment(
        dsn,
        kafka_server,
        minio_server,
        minio_server.create_bucket(unique()),
        KAFKA_TOPIC=kafka_server.create_topic(unique(), partitions=2),
        KAFKA_REPORTS_TOPIC=kafka_server.create_topic(unique()),
        KAFKA_GROUP=unique("group"),
    )
    others = {name: request.getfixturevalue(name) for name in ("huggingface", "kserve", "triton")}
    upstreams = proxied({"mlserver": mlserver, **others})
    folder = tmp_path_factory.mktemp("line")
    with run_line(environment, folder, upstreams, MODELS) as line:
        yield line
    postgres_server.drop_database(database)


def call_grpc(
    address: str, *messages: bytes, path: str = INFER, **metadata: str
) -> Sequence[bytes]:
    """Return the answers; `metadata`: names with underscores for dashes."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    result = asyncio.run(call_stream(address, path, messages, metadata=pairs))
    assert result.code is grpc.StatusCode.OK, result
    return result.messages


def make_message(
    model: str, name: str, datatype: str, shape: Sequence[int], raw: bytes, **more: Any
) -> bytes:
    """Make a request with a raw tensor, as Triton's clients do."""
    tensor = {"name": name, "datatype": datatype, "shape": shape}
    built = message("inference.ModelInferRequest")(
        model_name=model, inputs=[tensor], raw_input_contents=[raw], **more
    )
    return bytes(built.SerializeToString())


def test_digits_over_rest_and_grpc(real_line: RealLine) -> None:
    images, _ = load_digits(return_X_y=True)
    pixels = images[0].tolist()
    proxy = real_line.proxies["mlserver"]
    inputs = [{"name": "pixels", "datatype": "FP64", "shape": [1, 64], "data": pixels}]
    request = {"id": "digit-1", "inputs": inputs, "parameters": {"metadata": LIST}}
    answer = post(
        f"{proxy.url}/v2/models/digits/versions/v1/infer", request, **{"X-Request-ID": "r"}
    )
    raw = struct.pack("<64d", *pixels)
    sent = make_message("digits", "pixels", "FP64", [1, 64], raw, id="digit-2")
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    call_grpc(proxy.grpc, sent, inference_store_metadata=LIST, traceparent=trace)

    rest, over_grpc = real_line.captured("digits", 2)
    assert (rest["inference_id"], over_grpc["inference_id"]) == ("digit-1", "digit-2")
    assert (rest["protocol"], over_grpc["protocol"]) == ("v2", "v2-grpc")
    assert {"r", answer.headers["inference-store-id"]} & {*rest["aliases"]}
    assert (rest["http_status"], over_grpc["grpc_code"]) == (200, 0)
    assert over_grpc["trace_id"] == "a" * 32
    for item in (rest, over_grpc):
        assert read_metadata(item)["frame_number"] == "9001"
        assert (item["ok"], item["model_version"]) == (True, "v1")
        assert [prediction["value"] for prediction in item["predictions"]] == [0]
        data = real_line.blob(item, "data")
        assert (item["data_hash"], item["data_size_bytes"]) == (hash_content(data), len(data))
    assert json.loads(real_line.blob(rest, "response")) == answer.json()


def test_a_stream_is_one_inference(real_line: RealLine) -> None:
    """MLServer's over REST, and Triton's over gRPC."""
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["one two three"]}
    request = {"id": "streamed", "inputs": [text]}
    answer = post(f"{real_line.proxies['mlserver'].url}/v2/models/words/infer_stream", request)
    assert answer.text.count("data: ") == 3
    sent = make_message("words", "text", "BYTES", [1], b"\x0d\0\0\0one two three", id="s")
    assert len(call_grpc(real_line.proxies["triton"].grpc, sent, path=STREAM)) >= 3
    for protocol, name in (("v2", "streamed"), ("v2-grpc", "s")):
        (item,) = real_line.captured("words", 1, protocol=protocol)
        assert (item["inference_id"], item["ok"], item["batch_size"]) == (name, True, 1)
        response = real_line.blob(item, "response").decode()
        assert 0 < response.index("one") < response.index("two") < response.index("three")
        assert real_line.blob(item, "data") == b"one two three"


def test_binary_tensors_of_triton(real_line: RealLine, triton: Triton) -> None:
    proxy, path = real_line.proxies["triton"], "/v2/models/twice/infer"
    x = ("x", "FP32", [1, 3], struct.pack("<3f", 1, 2.5, -0.0))
    body, head = make_binary(*x, "y", id="b", parameters={"metadata": LIST})
    direct, proxied = (post(server.url + path, body, **head) for server in (triton, proxy))
    assert proxied.content == direct.content
    assert direct.content.endswith(struct.pack("<3f", 2, 5, -0.0))
    parameters = {"metadata": {"string_param": LIST}}
    call_grpc(proxy.grpc, make_message("twice", *x, id="g", parameters=parameters))
    body, head = make_binary("x", "FP32", [1, 1], struct.pack("<f", -1), "y", id="f")
    failed = httpx.post(proxy.url + path, content=body, headers=head, timeout=120)
    assert failed.status_code == 500
    items = real_line.captured("twice", 3)
    assert [item["inference_id"] for item in items] == ["b", "g", "f"]
    assert [item["ok"] for item in items] == [True, True, False]
    assert items[2]["error"] == failed.json()["error"]
    for answered in items[:2]:
        assert read_metadata(answered)["frame_number"] == "9001"
        assert answered["data_hash"] == hash_content(real_line.blob(answered, "data"))
        answer = json.loads(real_line.blob(answered, "response"))
        assert answer["outputs"][0]["data"] == [2, 5, 0]


def test_kserves_own_protocol(real_line: RealLine) -> None:
    proxy = real_line.proxies["mlserver"]
    rows: list[list[float]] = [[1, 2.5], [3, 4]]
    answer = post(f"{proxy.url}/v1/models/sums:predict", {"instances": rows})
    assert answer.json() == {"predictions": [3.5, 7]}
    items = real_line.captured("sums", 2, protocol="kserve-v1")
    assert [item["batch_index"] for item in items] == [0, 1]
    assert [json.loads(real_line.blob(item, "data")) for item in items] == rows
    assert [b"3.5" in real_line.blob(item, "response") for item in items] == [True, False]


def make_argument(name: str, datatype: str, value: Any) -> Any:
    tensor = {"name": name, "datatype": datatype, "shape": [1], "data": [value]}
    return {**tensor, "parameters": {"content_type": "raw"}}


GENERATED: list[Any] = [
    {"name": "args", "datatype": "BYTES", "shape": [1], "data": ["once upon a time"]},
    make_argument("max_new_tokens", "INT64", 5),
    make_argument("do_sample", "INT8", False),
    make_argument("repetition_penalty", "FP64", 1.5),
]


def test_a_generated_text(real_line: RealLine) -> None:
    (prompt,) = GENERATED[0]["data"]
    arguments = {argument["name"]: argument["data"][0] for argument in GENERATED[1:]}
    body = {"id": "story-1", "parameters": {"metadata": LIST}, "inputs": GENERATED}
    answer = post(f"{real_line.proxies['huggingface'].url}/v2/models/story/infer", body)
    generated = json.loads(answer.json()["outputs"][0]["data"][0])["generated_text"]
    assert generated.startswith(prompt)

    (item,) = real_line.captured("story", 1)
    assert (item["inference_id"], item["ok"], item["batch_size"]) == ("story-1", True, 1)
    assert real_line.blob(item, "data") == prompt.encode()
    assert item["data_hash"] == hash_content(prompt.encode())
    assert [prediction["text"] for prediction in item["predictions"]] == [generated]
    metadata = read_metadata(item)
    assert metadata["frame_number"] == "9001"
    assert json.loads(metadata["arguments"]) == arguments


def test_classified_texts(real_line: RealLine) -> None:
    url = f"{real_line.proxies['huggingface'].url}/v2/models/sentiment/infer"
    text = {"name": "args", "datatype": "BYTES", "shape": [1], "data": ["a good day"]}
    post(url, {"id": "good", "inputs": [text]})
    two = text | {"shape": [2], "data": ["one", "two"]}
    failed = httpx.post(url, json={"id": "failed", "inputs": [two]}, timeout=120)
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")
    items = real_line.captured("sentiment", 2)
    assert [(item["inference_id"], item["ok"], item["top_label"]) for item in items] == [
        ("good", True, "POSITIVE"),
        ("failed", False, None),
    ]
    assert items[0]["top_score"] > 0.9
    assert (items[1]["http_status"], items[1]["error"]) == (500, "Internal Server Error")
