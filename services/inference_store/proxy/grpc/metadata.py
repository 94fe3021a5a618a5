"""Metadata: what is passed on, and how it is kept."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Final, TypeAlias

from inference_store.proxy.exchange import Headers

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

# gRPC's own, made anew on each side: a connection's, or in the way of what it says itself.
_RESERVED: Final = frozenset(
    {"connection", "content-type", "host", "proxy-connection", "te", "user-agent"}
    | {"grpc-accept-encoding", "grpc-encoding", "grpc-message", "grpc-message-type"}
    | {"grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-status", "grpc-timeout"}
)


def passed(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """What is passed on, either way: names and values as they came, in order."""
    pairs = ((key, value) for key, value in metadata or ())
    return tuple(pair for pair in pairs if pair[0] not in _RESERVED and pair[0][:1] != ":")


def kept(metadata: Metadata | None) -> Headers:
    """The same as headers: binary values (names end in `-bin`) in Base64, as on the wire."""
    return tuple((key, _text(value)) for key, value in metadata or ())


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode()
