"""gRPC in front of any model server: bytes pass both ways without being decoded."""

from .server import MESSAGE_BYTES, Calls, channel, is_connected, open_grpc_port, server

__all__ = ["MESSAGE_BYTES", "Calls", "channel", "is_connected", "open_grpc_port", "server"]
