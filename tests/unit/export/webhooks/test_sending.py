"""Messages before receivers that nobody should trust, over real sockets."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from inference_store.export.webhooks import sending
from inference_store.export.webhooks.sending import Resolver, Sender

KEY = bytes(32)


@asynccontextmanager
async def answer_with(*pieces: bytes, forever: bytes = b"") -> AsyncIterator[tuple[str, list[int]]]:
    """Serve these bytes to each connection, then `forever` until it is closed.

    Yields the origin, and a list with how many bytes were taken of it so far.
    """
    taken = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
            await writer.drain()
            while forever:
                writer.write(forever)
                await writer.drain()
                taken[0] += len(forever)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", taken


@pytest.fixture(autouse=True)
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection may take as long as the whole message."""
    monkeypatch.setattr(sending, "_CONNECT_SECONDS", 600.0)


def make_sender(origin: str, seconds: float = 300.0) -> Sender:
    return Sender({origin}, [KEY], seconds=seconds)


async def send(origin: str, seconds: float = 300.0) -> str:
    """Return the error of a message; "" if there is none. It never names the query of the URL."""
    sender = make_sender(origin, seconds)
    error = (await sender.send(f"{origin}/hook?token=s3cret", "an-id", b"{}")).error or ""
    assert "s3cret" not in error
    return error


async def test_of_an_endless_answer_only_the_head_is_read() -> None:
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    for head, forever, error in (
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, ""),
        (b"HTTP/1.1 200 OK\r\nA: ", b"a" * 4096, "the connection failed"),
    ):
        async with answer_with(head, forever=forever) as (origin, taken):
            assert (await send(origin)).partition(":")[0] == error
            assert taken[0] < 16 * 1024 * 1024  # what sockets and one buffer hold


async def test_a_slow_answer_ends() -> None:
    for begin in (b"HTTP/1.1 200 OK\r\nA:", b""):
        async with answer_with(begin) as (origin, _):
            assert await send(origin, seconds=0.5) == "no answer within 0.5 seconds"


async def test_what_is_no_http_is_an_error() -> None:
    for garbage in (b"\0\1\2\r\n\r\n", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"):
        async with answer_with(garbage) as (origin, _):
            assert (await send(origin)).startswith("the connection failed"), garbage


async def test_a_pause_that_is_no_number_of_seconds_is_ignored() -> None:
    for answer in ("", "abc", "-5", "1.5", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 10, "²"):
        head = f"HTTP/1.1 503 X\r\nRetry-After: {answer}\r\nContent-Length: 0\r\n\r\n".encode()
        async with answer_with(head) as (origin, _):
            outcome = await make_sender(origin).send(origin, "an-id", b"{}")
        assert (outcome.error, outcome.retry_after) == ("it answered 503", None), answer


async def test_nothing_is_sent_unsigned_or_elsewhere() -> None:
    async with answer_with(b"HTTP/1.1 204 X\r\n\r\n") as (origin, _):
        unsigned = await Sender({origin}, []).send(origin, "an-id", b"{}")
        assert "EXPORT_WEBHOOK_SECRET" in str(unsigned.error)
        elsewhere = await Sender({"https://a.example"}, [KEY]).send(origin, "id", b"{}")
        assert "EXPORT_WEBHOOK_ORIGINS" in str(elsewhere.error)
        damaged = await make_sender(origin).send(f"{origin}#x", "id", b"{}")
        assert damaged.error == "the URL is not in the form that is sent to"


async def test_a_look_up_that_hangs_holds_up_no_other_thread() -> None:
    """Blobs are read and deleted in the threads of the loop."""
    freed = threading.Event()

    def hang(*_: Any, **__: Any) -> Any:
        freed.wait()
        raise socket.gaierror

    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    loop.set_default_executor(ThreadPoolExecutor(1))
    try:
        resolver = Resolver(pool, hang)
        looking = [asyncio.create_task(resolver.resolve("hooks.example")) for _ in range(8)]
        assert await asyncio.to_thread(lambda: "done") == "done"
    finally:
        freed.set()
        await asyncio.gather(*looking, return_exceptions=True)
        pool.shutdown()
