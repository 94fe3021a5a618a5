"""OMI, Modzy's container specification: `Run` over gRPC, one inference per input item.

An item is a set of named files: the datum is the only file, or all of them as JSON by name. The
answer is V2's JSON: one output with the predictions of the result file, and all files under
`files`, including explanations and drift.
"""

from typing import Final

from inference_store.proxy.protocols.protocol import Call, Protocol

from .exchange_reading import read

RUN: Final = "/ModzyModel/Run"


def recognise(protocol: Protocol, _method: str, path: str) -> Call | None:
    """Recognise `Run` only; the configuration names the model."""
    return Call(protocol, "infer") if path == RUN else None


OMI: Final = Protocol(
    name="omi",
    title="OMI containers",
    transport="grpc",
    recognise=recognise,
    read=read,
)
