"""Calls over gRPC, made again. Imported for the first of them: a start does without gRPC."""

import asyncio
import re
import ssl
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
from yarl import URL

from inference_store.grpc_messages import parsed
from inference_store.inference.stored_requests import (
    REPLAY_HEADER,
    NotSendable,
    ReplayMark,
    Request,
    Target,
)

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of an answer, which is held whole; the proxy has captured a longer one when it is refused."""
_OPTIONS: Final = (
    # each call is made once, to the proxy itself, and on a connection of its own as over REST
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MOST_BYTES),
    # gRPC's own limits of metadata, 8 KiB, would apply instead of the proxy's
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
)
_NAME: Final = re.compile(r"(?!grpc-|content-type$|user-agent$)[0-9a-z_.-]+")


def rename(request: Request, target: Target) -> Request:
    """Return a ModelInferRequest for another model or version. Raises NotSendable.

    It is read as a message that has these two names alone: what follows them, such as the contents
    of tensors, is kept byte for byte, and never decoded.
    """
    if target == (None, None):
        return request
    named = parsed("inference.ModelReadyRequest", request.body)
    if named is None:
        raise NotSendable("unreadable")
    named.name = named.name if target.model is None else target.model
    named.version = target.version or ""
    return request._replace(body=named.SerializeToString())


async def send(address: URL, mark: ReplayMark, request: Request, connect_seconds: float) -> int:
    """Make a call, or open a stream of one request, and read what answers it to the end, without
    keeping it; return the status. Raises ConnectionRefusedError if nothing was sent."""
    metadata = (*_select_metadata(request), (REPLAY_HEADER, mark.header))
    async with _open_channel(address) as channel:
        try:
            async with asyncio.timeout(connect_seconds):
                await channel.channel_ready()
        except TimeoutError as error:
            raise ConnectionRefusedError from error
        ask: Any = channel.unary_stream(request.path)  # one answer is a stream of one
        call: Any = ask(request.body, metadata=metadata)
        with suppress(grpc.aio.AioRpcError):  # the call has its status
            async for _ in call:
                pass
        return int((await call.code()).value[0])


def _open_channel(address: URL) -> grpc.aio.Channel:
    """Return a channel to a proxy, with TLS if the address has `https`."""
    target = f"{address.host_subcomponent}:{address.port}"
    if address.scheme == "http":
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    trusted = ssl.get_default_verify_paths().cafile  # SSL_CERT_FILE, as over REST
    roots = None if trusted is None else Path(trusted).read_bytes()
    credentials = grpc.ssl_channel_credentials(roots)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


def _select_metadata(request: Request) -> Iterator[tuple[str, str | bytes]]:
    """Yield the headers that gRPC takes as metadata; binary values are stored in base64."""
    for name, value in request.headers:
        if not _NAME.fullmatch(name):
            continue
        if not name.endswith("-bin"):
            yield from [(name, value)] if value.isascii() and value.isprintable() else []
            continue
        with suppress(ValueError):
            yield name, b64decode(value + "==")
