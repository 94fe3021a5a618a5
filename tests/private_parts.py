"""Private parts of libraries that the product relies on.

Whoever raises a version here has looked at each of its parts in the new one, and at who uses it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PrivateParts:
    """The names used of one version of a library, by `module:class`, or `module:` for its own."""

    version: str
    names: Mapping[str, Sequence[str]]


_CYCLE: Final = (
    *("chunked_encoding", "disconnected", "expected_content_length", "keep_alive", "more_body"),
    *("response_complete", "response_started", "scope", "send", "transport"),
)
_PROTOCOL: Final = (
    *("_start_asgi_task", "_unset_keepalive_if_required", "cycle", "eof_received", "headers"),
    *("on_message_complete", "parser", "pipeline", "scheme", "send_400_response", "url"),
)
PRIVATE_PARTS: Final[Mapping[str, PrivateParts]] = {
    "aiokafka": PrivateParts(
        "0.14.0",
        {
            "aiokafka:AIOKafkaConsumer": ("_client", "_coordinator"),
            "aiokafka.conn:": ("AIOKafkaConnection", "CloseReason", "create_conn"),
            "aiokafka.conn:AIOKafkaConnection": ("_versions", "_writer", "send"),
            "aiokafka.consumer.group_coordinator:GroupCoordinator": ("_group_instance_id",),
            "aiokafka.record._crecords:": ("default_records", "legacy_records"),
            "aiokafka.record.default_records:": ("_DefaultRecordBatchPy", "_DefaultRecordPy"),
            "aiokafka.record.default_records:_DefaultRecordBatchPy": (
                "_maybe_uncompress",
                "_read_msg",
            ),
            "aiokafka.record.memory_records:": ("MemoryRecords",),
        },
    ),
    "grpcio": PrivateParts("1.85.1", {"grpc.aio._call:Call": ("_cython_call",)}),
    "minio": PrivateParts("7.2.20", {"minio:Minio": ("_execute",)}),
    "sqlalchemy": PrivateParts(
        "2.1.9", {"sqlalchemy.sql.elements:ClauseElement": ("_compile_w_cache",)}
    ),
    "uvicorn": PrivateParts(
        "0.54.0",
        {
            "uvicorn.protocols.http.httptools_impl:HttpToolsProtocol": _PROTOCOL,
            "uvicorn.protocols.http.httptools_impl:RequestResponseCycle": _CYCLE,
        },
    ),
}
PUBLIC: Final = frozenset({"_asdict", "_exit", "_fields", "_mapping", "_replace"})
"""Documented names that begin with an underscore: of named tuples, of rows, of `os`."""
