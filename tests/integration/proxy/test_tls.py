"""TLS to model servers and for callers."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from aiohttp import ClientSession, web

from inference_store.proxy.configuration import UpstreamEntry
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.grpc import channel
from inference_store.proxy.grpc.server import read_server_credentials
from tests.fake_captures import FakeCaptures
from tests.servers.certificates import Authority, Pair

from .grpc_upstream import INFER, SECONDS, Upstream, call_unary, echo
from .rest_server import encode_request, proxy, send_raw, upstream

REQUEST = encode_request("POST", "/v2/models/m/infer", b"{}")


async def _echo(request: web.Request) -> web.StreamResponse:
    return web.Response(body=await request.read())


def _make_server_context(pair: Pair, clients: Authority | None = None) -> ssl.SSLContext:
    """Make the context of a server. `clients`: the authority of the clients that it accepts."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    if clients is not None:
        context.load_verify_locations(clients.ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _call_rest(tls: ssl.SSLContext, **entry: Any) -> tuple[bytes, Exchange]:
    """Call a model server with this context through a proxy; return the answer and the exchange."""
    async with upstream(_echo, tls) as port:
        url = f"https://127.0.0.1:{port}"
        async with proxy(port, captures := FakeCaptures(), url=url, **entry) as before:
            answer = await send_raw(before, REQUEST)
            return answer, await captures.exchange()


async def test_verifies_rest_servers_and_presents_its_certificate(authority: Authority) -> None:
    """The fault lies with the upstream, not with the request."""
    ours = _make_server_context(authority.issue("model-server"))
    answer, exchange = await _call_rest(ours, ca_file=authority.ca_file)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"{}")
    assert exchange.error is None
    renamed = _make_server_context(authority.issue("other", host="models.example"))
    for server, trusted in ((ours, {}), (renamed, {"ca_file": authority.ca_file})):
        answer, exchange = await _call_rest(server, **trusted)
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"the upstream one cannot be reached: ClientConnectorCertificateError" in answer
        assert b"CERTIFICATE_VERIFY_FAILED" in answer
        assert exchange.http_status is None
    tls = _make_server_context(authority.issue("model-server"), clients=authority)
    own = authority.issue("proxy")
    pair = {"certificate_file": own.certificate, "key_file": own.key}
    answer, _ = await _call_rest(tls, ca_file=authority.ca_file, **pair)
    assert answer.startswith(b"HTTP/1.1 200 ")
    answer, _ = await _call_rest(tls, ca_file=authority.ca_file)
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_serves_callers_over_tls(authority: Authority) -> None:
    own = authority.issue("proxy")
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    async with (
        upstream(_echo) as port,
        proxy(port, own=own) as before,
        ClientSession() as session,
    ):
        url = f"https://localhost:{before}/v2/models/m/infer"
        large = b"x" * 1_000_000
        # It also asks for another protocol: over TLS its body is read as well.
        asks = {"Connection": "Upgrade", "Upgrade": "h2c"}
        async with session.post(url, data=large, ssl=trusting, headers=asks) as answer:
            assert await answer.read() == large


def _make_credentials(pair: Pair, clients: Authority | None = None) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())],
        None if clients is None else clients.ca_file.read_bytes(),
        require_client_auth=clients is not None,
    )


@asynccontextmanager
async def _grpc_server(credentials: grpc.ServerCredentials) -> AsyncIterator[int]:
    upstream_handler = Upstream()
    upstream_handler.behaviours[INFER] = echo
    server = grpc.aio.server(handlers=(upstream_handler,))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def _call_grpc(port: int, **entry: Any) -> grpc.StatusCode | None:
    target = f"grpcs://127.0.0.1:{port}"
    described = UpstreamEntry(name="one", grpc=target, **entry)
    async with channel(target, described) as opened:
        result = await call_unary(opened, INFER, b"asked", timeout=SECONDS)
    assert result.messages == ([b"asked"] if result.code is grpc.StatusCode.OK else [])
    return result.code


async def test_verifies_grpc_servers_and_presents_its_certificate(authority: Authority) -> None:
    async with _grpc_server(_make_credentials(authority.issue("model-server"))) as port:
        assert await _call_grpc(port, ca_file=authority.ca_file) is grpc.StatusCode.OK
        assert await _call_grpc(port) is grpc.StatusCode.UNAVAILABLE
    ours = authority.issue("proxy")
    pair = {"certificate_file": ours.certificate, "key_file": ours.key}
    mutual = _make_credentials(authority.issue("model-server"), clients=authority)
    async with _grpc_server(mutual) as port:
        assert await _call_grpc(port, ca_file=authority.ca_file, **pair) is grpc.StatusCode.OK
        assert await _call_grpc(port, ca_file=authority.ca_file) is grpc.StatusCode.UNAVAILABLE


async def test_grpc_shows_a_renewed_certificate(authority: Authority, stranger: Authority) -> None:
    pair = stranger.issue("proxy")
    async with _grpc_server(read_server_credentials(pair.certificate, pair.key)) as port:
        assert await _call_grpc(port, ca_file=authority.ca_file) is grpc.StatusCode.UNAVAILABLE
        renewed = authority.issue("proxy")
        pair.key.write_bytes(renewed.key.read_bytes())
        pair.certificate.write_bytes(renewed.certificate.read_bytes())
        assert await _call_grpc(port, ca_file=authority.ca_file) is grpc.StatusCode.OK
