"""The protocols, in the order in which they are tried to recognise a call."""

import re
from collections.abc import Collection, Sequence
from types import MappingProxyType
from typing import Final

from inference_store.proxy.exchange import Transport

from .bodies import CHARIOT_V2, KSERVE_V1, MLFLOW, RAW, RAW_GRPC, TORCHSERVE
from .omi import OMI
from .openai import ANTHROPIC, EMBEDDINGS, OPENAI, RESPONSES
from .protocol import Call, Inference, Model, Protocol, Reading
from .v2 import V2_REST
from .v2_grpc import V2_GRPC

# The Open Inference Protocol's repository, and Triton's extensions of it; OMI's own; what language
# models do besides answering.
_REST: Final = re.compile(
    r"/v2/(?:repository/.+"
    r"|(?:models/[^/]+/(?:versions/[^/]+/)?)?trace/setting"
    r"|logging"
    r"|(?:system|cuda)sharedmemory/.+)/?"
    r"|/v1/(?:messages/(?:count_tokens|batches.*)|responses/.+|files|batches.*)/?"
)
_GRPC: Final = re.compile(
    r"/grpc\..+"  # health and reflection
    r"|/inference\.model_repository\.ModelRepositoryService/.+"
    r"|/inference\.GRPCInferenceService/(?:Server.+|Repository.+|LogSettings|TraceSetting"
    r"|(?:System|Cuda)SharedMemory.+|Model(?:Ready|Metadata|Config|Statistics))"
    r"|/ModzyModel/(?:Status|Shutdown)"
)


def may_infer(transport: Transport, method: str, paths: Sequence[str]) -> bool:
    """Return whether a call that no protocol recognises may be an inference: a POST that is not
    known to be something else. `paths`: one path, in every way that a server may read it."""
    control = _REST if transport == "rest" else _GRPC
    return method == "POST" and not any(control.fullmatch(path) for path in paths)


_ALL: Final = (
    *(V2_REST, V2_GRPC, CHARIOT_V2, KSERVE_V1, OPENAI, RESPONSES, EMBEDDINGS, ANTHROPIC),
    *(MLFLOW, TORCHSERVE, OMI, RAW, RAW_GRPC),
)
PROTOCOLS: Final = MappingProxyType({protocol.name: protocol for protocol in _ALL})
"""The protocols by name. Those that recognise every call come last."""


def recognise_call(
    names: Collection[str], transport: Transport, method: str, *paths: str
) -> Call | None:
    """Return the call to capture, from the first protocol of these names that recognises it; None
    if it passes through. `paths`: one path, in every way that a server may read it."""
    for name, protocol in PROTOCOLS.items():
        if name in names and protocol.transport == transport:
            for path in paths:
                if (call := protocol.recognise(method, path)) is not None:
                    return call
    return None


__all__ = ["PROTOCOLS", "may_infer", "recognise_call"]
__all__ += ["Call", "Inference", "Model", "Protocol", "Reading"]
