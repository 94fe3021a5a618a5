"""A call over gRPC is made again: its message names another model, and nothing else changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from inference_store.grpc_messages import message
from inference_store.inference.stored_requests import NotSendable, ReplayMark, Request, Target
from inference_store.replay.grpc_calls import rename, send
from tests.integration.proxy.grpc_upstream import INFER, SECONDS, STREAM, Upstream, echo
from tests.servers.certificates import Authority
from tests.servers.ports import free_port

ModelInferRequest = message("inference.ModelInferRequest")
MARK = ReplayMark(uuid4(), uuid4())
# A field that no version of the protocol has, behind those that it has.
_UNKNOWN = b"\xfa\x7f\x03new"


def make_request(body: bytes, path: str = INFER, *headers: tuple[str, str]) -> Request:
    return Request(path, "", headers, body)


def make_message(tensors: list[tuple[str, str, list[Any]]], raw: list[bytes]) -> bytes:
    built = ModelInferRequest(model_name="m", model_version="1", id="7", raw_input_contents=raw)
    for datatype, field, values in tensors:
        tensor = built.inputs.add(name="x", datatype=datatype, shape=[len(values)])
        getattr(tensor.contents, field).extend(values)
        tensor.parameters["metadata"].string_param = "[]"
    return bytes(built.SerializeToString()) + _UNKNOWN


_TENSORS = st.lists(
    st.tuples(st.just("FP32"), st.just("fp32_contents"), st.lists(st.floats(width=32)))
    | st.tuples(st.just("UINT64"), st.just("uint64_contents"), st.lists(st.integers(0, 2**64 - 1)))
    | st.tuples(st.just("BYTES"), st.just("bytes_contents"), st.lists(st.binary())),
    max_size=3,
)


@given(_TENSORS, st.lists(st.binary(max_size=40), max_size=3))
def test_a_message_for_another_model_has_the_same_bytes_behind_its_names(
    tensors: list[tuple[str, str, list[Any]]], raw: list[bytes]
) -> None:
    body = make_message(tensors, raw)
    named = bytes(ModelInferRequest(model_name="m", model_version="1").SerializeToString())
    assert body.startswith(named)
    for target, name, version in (
        (Target(None, None), "m", "1"),
        (Target("other", None), "other", ""),
        (Target("other", "3"), "other", "3"),
        (Target(None, "3"), "m", "3"),
    ):
        renamed = ModelInferRequest(model_name=name, model_version=version).SerializeToString()
        assert rename(make_request(body), target).body == renamed + body[len(named) :]


def test_names_that_come_last_are_replaced_too() -> None:
    body = _UNKNOWN + b"\x12\x011" + b"\x0a\x01m"
    sent = ModelInferRequest.FromString(rename(make_request(body), Target("n", None)).body)
    assert (sent.model_name, sent.model_version) == ("n", "")


def test_what_is_no_message_is_not_sent() -> None:
    with pytest.raises(NotSendable, match="unreadable"):
        rename(make_request(b"\x0a\xffno message"), Target("n", None))


@asynccontextmanager
async def serve(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[Any]:
    """Serve what answers with the request; yield it, and its port."""
    upstream = Upstream()
    upstream.behaviours |= {INFER: echo, STREAM: echo}
    server = grpc.aio.server(handlers=(upstream,), options=[("grpc.max_metadata_size", 1 << 20)])
    at = "localhost:0"
    port = server.add_secure_port(at, credentials) if credentials else server.add_insecure_port(at)
    await server.start()
    try:
        yield upstream, port
    finally:
        await server.stop(None)


async def test_a_call_has_its_metadata_and_its_mark_and_returns_its_status() -> None:
    stored = [
        ("content-type", "application/grpc"),
        ("grpc-encoding", "gzip"),
        ("Host", "x"),
        ("tenant", "a b"),
        ("tenant", "ä"),
        ("trace-bin", "AAH/"),
        ("other-bin", "AAE"),
        ("wrong-bin", "A"),
    ]
    async with serve() as (upstream, port):
        url = URL(f"http://localhost:{port}")

        async def refuse(context: Any) -> None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")

        assert await send(url, MARK, make_request(b"x", INFER, *stored), SECONDS) == 0
        assert await send(url, MARK, make_request(b"x", STREAM), SECONDS) == 0
        upstream.behaviours[INFER] = refuse
        for _ in range(20):
            code = await send(url, MARK, make_request(b"x" * 5_000_000), SECONDS)
            assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        own = [pair for pair in upstream.metadata[0] if pair[0] != "user-agent"]
        assert own == [
            ("tenant", "a b"),
            ("trace-bin", b"\x00\x01\xff"),
            ("other-bin", b"\x00\x01"),
            ("inference-store-replay", MARK.header),
        ]


async def test_the_proxy_is_away_if_it_takes_no_connection(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_request(b"x")
    with pytest.raises(ConnectionRefusedError):
        await send(URL(f"http://127.0.0.1:{free_port()}"), MARK, request, 0.1)
    pair = authority.issue("proxy")
    files = [(pair.key.read_bytes(), pair.certificate.read_bytes())]
    async with serve(grpc.ssl_server_credentials(files)) as (upstream, port):
        url = URL(f"https://localhost:{port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(stranger.ca_file))
        with pytest.raises(ConnectionRefusedError):
            await send(url, MARK, request, 0.1)
        assert upstream.metadata == []
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca_file))
        assert await send(url, MARK, request, SECONDS) == 0
