"""OMI, Modzy's container specification: `Run` over gRPC, an inference an input item.

An item is files by name: the datum is the only file, or all of them as JSON by name. The answer is
V2's JSON: one output of the result file's predictions, and all files under `files`, explanations
and drift with them.
"""

from typing import Final

from inference_store.proxy.protocols.protocol import Call, Protocol

from .reading import read

RUN: Final = "/ModzyModel/Run"


def recognise(protocol: Protocol, _method: str, path: str) -> Call | None:
    """`Run` alone; the configuration says which model it is."""
    return Call(protocol, "infer") if path == RUN else None


OMI: Final = Protocol(
    name="omi",
    title="OMI containers",
    transport="grpc",
    recognise=recognise,
    read=read,
)
