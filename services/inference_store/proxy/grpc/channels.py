"""Channels to upstreams, and the options that clients and servers share."""

from collections.abc import Sequence
from typing import Final

import grpc

MESSAGE_BYTES: Final = 256 << 20
"""The largest message that is forwarded by default: a larger one is refused, not cut."""
_METADATA_BYTES: Final = 1 << 20
_RECONNECT_MILLISECONDS: Final = 1_000


def options(message_bytes: int = MESSAGE_BYTES) -> Sequence[tuple[str, int]]:
    """Return the options of clients and servers: gRPC's default limits (4 MiB, and 8 KiB of
    metadata) would apply instead of the upstream's."""
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
    """Return a channel to `host:port`; it connects when first used, and again when the upstream is
    available again.

    Call it inside the loop. `compression`: of messages sent; gRPC does not report what the caller
    used.
    """
    all_options = (
        *options(message_bytes),
        # a call is forwarded once: only the caller may repeat it
        ("grpc.enable_retries", 0),
        ("grpc.max_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
        ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MILLISECONDS // 10),
        ("grpc.min_reconnect_backoff_ms", _RECONNECT_MILLISECONDS),
    )
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=all_options, compression=compression)
    return grpc.aio.secure_channel(
        target, credentials, options=all_options, compression=compression
    )
