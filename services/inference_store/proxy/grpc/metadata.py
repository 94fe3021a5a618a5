"""Selects metadata to forward, and converts metadata to headers."""

from base64 import b64encode
from collections.abc import Iterable
from typing import Final, TypeAlias

from inference_store.proxy.exchange import Headers

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]

# gRPC's own, which each side creates: those of a connection, or those that would conflict with its
# own.
_RESERVED: Final = frozenset(
    {"connection", "content-type", "host", "proxy-connection", "te", "user-agent"}
    | {"grpc-accept-encoding", "grpc-encoding", "grpc-message", "grpc-message-type"}
    | {"grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-status", "grpc-timeout"}
)


def select_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata to forward, in either direction: names and values unchanged, in order."""
    pairs = ((key, value) for key, value in metadata or ())
    return tuple(pair for pair in pairs if pair[0] not in _RESERVED and pair[0][:1] != ":")


def metadata_as_headers(metadata: Metadata | None) -> Headers:
    """Return metadata as headers: binary values (names end in `-bin`) in Base64, as on the wire."""
    return tuple((key, _text(value)) for key, value in metadata or ())


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode()
