"""Channels to upstreams, and what their connections and ours have in common."""

from collections.abc import Sequence
from typing import Final

import grpc

MESSAGE_BYTES: Final = 256 << 20
"""The largest message that passes unless told otherwise: what is larger is refused, not cut."""
_METADATA_BYTES: Final = 1 << 20
_RECONNECT_MILLISECONDS: Final = 1_000


def options(message_bytes: int = MESSAGE_BYTES) -> Sequence[tuple[str, int]]:
    """Of either side: gRPC's own limits (4 MiB, and 8 KiB of metadata) would be ours, not the
    upstream's."""
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
    )


def channel(
    target: str,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    compression: grpc.Compression | None = None,
    message_bytes: int = MESSAGE_BYTES,
) -> grpc.aio.Channel:
    """A channel to `host:port`; it connects when first used, and again when the upstream is back.

    Call it inside the loop. `compression` of what is sent: gRPC does not say what the caller's was.
    """
    chosen = (
        *options(message_bytes),
        # a caller's call is made once: what is repeated is the caller's choice
        ("grpc.enable_retries", 0),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS // 10),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
    )
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=chosen, compression=compression)
    return grpc.aio.secure_channel(target, credentials, options=chosen, compression=compression)
