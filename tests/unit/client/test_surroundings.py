"""Addresses, ids and an environment that cannot be used are refused with the remedy."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from inference_store_client import ConnectionFailed, SettingsError, UnexpectedAnswer
from inference_store_client.requests import make_path
from tests.both_clients import Client, Recorded


@pytest.mark.parametrize(
    "url", ["https://a.example\n", "https://a .example", "https://a.example/\x00", "https://\u2028"]
)
async def test_an_address_of_odd_characters(client: Client, url: str) -> None:
    with pytest.raises(SettingsError, match="is no address"):
        client.make_store(url)


@pytest.mark.parametrize("end", ["/console", "/console/", "/console/#/models/console"])
async def test_the_address_of_the_console(client: Client, end: str) -> None:
    remedy = r"/console is the page of the console: write https://store\.example/a$"
    with pytest.raises(SettingsError, match=remedy):
        client.make_store(f"https://store.example/a{end}")


async def test_an_address_that_only_httpx_refuses(client: Client) -> None:
    store = client.make_store("https://xn--a.example")
    with pytest.raises(SettingsError, match=r"'https://xn--a\.example/v1/me' is no address: "):
        await client.ask(store.me)
    await client.ask(store.close)


@pytest.mark.parametrize("id", ["", ".", "..", "\udcff"])
def test_an_id_that_no_path_can_hold(id: str) -> None:
    with pytest.raises(SettingsError, match="is no id"):
        make_path("models", id, "inferences")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1", "httpx\\[socks\\]"),
        ("HTTPS_PROXY", "gopher://127.0.0.1:1", "HTTPS_PROXY or ALL_PROXY names no proxy"),
        ("HTTP_PROXY", "http://a.example:x", "HTTPS_PROXY or ALL_PROXY names no proxy"),
        ("SSL_CERT_FILE", "/no/such/file", "certificates of SSL_CERT_FILE"),
        ("SSL_CERT_FILE", __file__, "certificates of SSL_CERT_FILE"),
    ],
)
async def test_an_environment_that_cannot_be_used(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=said):
        client.make_store("https://store.example")


async def test_a_proxy_of_the_environment_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "direct.invalid")
    for host, is_named in {"store.example": True, "direct.invalid": False}.items():
        async with client.open_store(f"http://{host}") as store:
            with pytest.raises(ConnectionFailed) as error:
                await client.ask(store.me)
        assert ("the environment names a proxy" in str(error.value)) == is_named
        assert "secret" not in str(error.value)


async def test_https_where_no_tls_is_spoken(client: Client) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    async with server, client.open_store(f"https://127.0.0.1:{port}") as store:
        with pytest.raises(ConnectionFailed, match="no TLS is spoken there; is it http://"):
            await client.ask(store.me)


async def test_http_where_tls_is_spoken(client: Client) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65_536)  # a server of TLS ends after what is no handshake
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, family=socket.AF_INET)
    port = server.sockets[0].getsockname()[1]
    async with server, client.open_store(f"http://127.0.0.1:{port}") as store:
        with pytest.raises(ConnectionFailed, match="TLS is spoken there; is it https://"):
            await client.ask(store.me)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html>Sign in to the network</html>", "not JSON.* begins: '<html>Sign in to the net"),
        (b"", "not JSON.* begins: ''"),
        (b'{"actor": "key:a", "rights": [', "the answer is cut off or damaged: "),
        (b"[" * 100_000, "the answer is cut off or damaged: "),
    ],
)
async def test_an_answer_that_is_not_of_the_api(client: Client, content: bytes, said: str) -> None:
    store = client.make_answered(Recorded([httpx.Response(200, content=content)]))
    with pytest.raises(UnexpectedAnswer, match=said):
        await client.ask(store.me)


@pytest.mark.parametrize("ask", ["stream", "to_arrow"])
async def test_a_page_of_a_proxy_instead_of_a_stream(client: Client, ask: str) -> None:
    html = {"Content-Type": "text/html; charset=utf-8"}
    page = httpx.Response(200, content=b"<html>Sign in</html>", headers=html)
    recorded = Recorded([page])
    inferences = client.make_answered(recorded).model("m").inferences()
    asks: dict[str, Callable[[], Awaitable[Any]]] = {
        "stream": lambda: client.list(inferences.stream),
        "to_arrow": lambda: client.ask(inferences.to_arrow),
    }
    with pytest.raises(UnexpectedAnswer, match=r"a page of HTML\..* begins: '<html>Sign in"):
        await asks[ask]()
    assert len(recorded.requests) == 1
