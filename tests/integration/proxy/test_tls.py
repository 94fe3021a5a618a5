"""Model servers behind TLS: whom the proxy trusts, and who it says it is."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import ClientSession, web

from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.grpc_port import channel_to
from tests.servers.certificates import Authority, Pair

from .grpc_upstream import INFER, Upstream, unary
from .rest_server import Kept, proxy, raw, upstream

REQUEST = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: models.example\r\nConnection: close\r\n"
    b"Content-Length: 2\r\n\r\n{}"
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def _echo(request: web.Request) -> web.StreamResponse:
    return web.Response(body=await request.read())


def _serving(pair: Pair, clients: Authority | None = None) -> ssl.SSLContext:
    """`clients`: who signs the certificates of those who are let in."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    if clients is not None:
        context.load_verify_locations(clients.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _asked(tls: ssl.SSLContext, **entry: Any) -> tuple[bytes, Kept]:
    """What a proxy answers before a model server that serves so."""
    async with upstream(_echo, tls) as port:
        url = f"https://127.0.0.1:{port}"
        async with proxy(port, kept := Kept(), url=url, **entry) as before:
            answer = await raw(before, REQUEST)
            await kept.first()
    return answer, kept


async def test_an_authority_of_our_own(authority: Authority) -> None:
    tls = _serving(authority.issue("model-server"))
    answer, kept = await _asked(tls, ca_file=authority.ca_file)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"{}")
    assert (await kept.first()).error is None


async def test_a_server_of_nobody_we_trust_is_not_asked(authority: Authority) -> None:
    """It is the upstream's fault, not the request's."""
    answer, kept = await _asked(_serving(authority.issue("model-server")))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"the upstream one cannot be reached: ClientConnectorCertificateError" in answer
    assert b"CERTIFICATE_VERIFY_FAILED" in answer
    assert (await kept.first()).http_status is None


async def test_a_server_of_another_name_is_not_asked(authority: Authority) -> None:
    tls = _serving(authority.issue("other", host="models.example"))
    answer, _ = await _asked(tls, ca_file=authority.ca_file)
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"CERTIFICATE_VERIFY_FAILED" in answer


async def test_a_server_that_asks_who_we_are(authority: Authority) -> None:
    tls = _serving(authority.issue("model-server"), clients=authority)
    ours = authority.issue("proxy")
    pair = {"certificate_file": ours.certificate, "key_file": ours.key}
    answer, _ = await _asked(tls, ca_file=authority.ca_file, **pair)
    assert answer.startswith(b"HTTP/1.1 200 ")
    answer, _ = await _asked(tls, ca_file=authority.ca_file)
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_callers_over_tls(authority: Authority) -> None:
    own = authority.issue("proxy")
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    async with (
        upstream(_echo) as port,
        proxy(port, Kept(), own=own) as before,
        ClientSession() as session,
    ):
        url = f"https://localhost:{before}/v2/models/m/infer"
        large = b"x" * 1_000_000
        # asks for another protocol, too: over TLS its body is read as well
        asks = {"Connection": "Upgrade", "Upgrade": "h2c"}
        async with session.post(url, data=large, ssl=trusting, headers=asks) as answer:
            assert await answer.read() == large


@asynccontextmanager
async def _grpc_upstream(pair: Pair, clients: Authority | None = None) -> AsyncIterator[int]:
    async def echo(context: Any) -> None:
        await context.write(await context.read())

    found = Upstream()
    found.behaviours[INFER] = echo
    server = grpc.aio.server(handlers=(found,))
    credentials = grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())],
        None if clients is None else clients.ca_file.read_bytes(),
        require_client_auth=clients is not None,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def _called(port: int, **entry: Any) -> grpc.StatusCode | None:
    target = f"grpcs://127.0.0.1:{port}"
    described = UpstreamEntry(name="one", grpc=target, **entry)
    async with channel_to(described, target, 1 << 20) as channel:
        seen = await unary(channel, INFER, b"asked", timeout=60)
    assert seen.messages == ([b"asked"] if seen.code is grpc.StatusCode.OK else [])
    return seen.code


async def test_grpc_over_tls(authority: Authority) -> None:
    async with _grpc_upstream(authority.issue("model-server")) as port:
        assert await _called(port, ca_file=authority.ca_file) is grpc.StatusCode.OK
        assert await _called(port) is grpc.StatusCode.UNAVAILABLE


async def test_a_grpc_server_that_asks_who_we_are(authority: Authority) -> None:
    ours = authority.issue("proxy")
    pair = {"certificate_file": ours.certificate, "key_file": ours.key}
    async with _grpc_upstream(authority.issue("model-server"), clients=authority) as port:
        assert await _called(port, ca_file=authority.ca_file, **pair) is grpc.StatusCode.OK
        assert await _called(port, ca_file=authority.ca_file) is grpc.StatusCode.UNAVAILABLE
