"""Protocols: one entry each, in the order in which they are asked whether a call is theirs."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from inference_store.proxy.exchange import Transport

from .chariot_v2 import CHARIOT_V2
from .control import may_infer
from .kserve_v1 import KSERVE_V1
from .omi import OMI
from .openai import OPENAI
from .protocol import Call, Inference, Model, Protocol, Reading
from .raw import RAW, RAW_GRPC
from .v2 import V2_REST
from .v2_grpc import V2_GRPC


def _table(*entries: Protocol) -> Mapping[str, Protocol]:
    return MappingProxyType({entry.name: entry for entry in entries})


PROTOCOLS: Final = _table(V2_REST, V2_GRPC, CHARIOT_V2, KSERVE_V1, OPENAI, OMI, RAW, RAW_GRPC)
"""By name. Those that take every call come last."""


def recognised(
    names: Collection[str], transport: Transport, method: str, *paths: str
) -> Call | None:
    """The call to be captured, by the first protocol of these names that knows it; None: it passes
    through. `paths`: one path, in each way in which a server may read it."""
    for name, protocol in PROTOCOLS.items():
        if name in names and protocol.transport == transport:
            for path in paths:
                if (call := protocol.recognise(protocol, method, path)) is not None:
                    return call
    return None


__all__ = [
    "PROTOCOLS",
    "Call",
    "Inference",
    "Model",
    "Protocol",
    "Reading",
    "may_infer",
    "recognised",
]
