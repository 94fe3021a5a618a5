"""Calls of model servers that are not inferences."""

import re
from collections.abc import Sequence
from typing import Final

from inference_store.proxy.exchange import Transport

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
