"""Methods of known model servers: their arity, and the field that names the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .wire import read_texts


@dataclass(frozen=True, slots=True)
class Method:
    """A known method. Others are forwarded as streams both ways, which carry every arity."""

    unary: bool = True
    model: int | None = None
    """The number of the request's field that names the model; None if there is none."""
    version: int | None = None


_V2: Final = "/inference.GRPCInferenceService/"
_REPOSITORY: Final = "/inference.model_repository.ModelRepositoryService/"
_OMI: Final = "/ModzyModel/"
_OF_A_SERVER: Final = Method()
_OF_A_MODEL: Final = Method(model=1, version=2)
_OF_A_REPOSITORY: Final = {
    "RepositoryIndex": _OF_A_SERVER,
    "RepositoryModelLoad": Method(model=2),
    "RepositoryModelUnload": Method(model=2),
}
_OF_V2: Final = {
    "ServerLive": _OF_A_SERVER,
    "ServerReady": _OF_A_SERVER,
    "ServerMetadata": _OF_A_SERVER,
    "ModelReady": _OF_A_MODEL,
    "ModelMetadata": _OF_A_MODEL,
    "ModelInfer": _OF_A_MODEL,
    "ModelStreamInfer": Method(unary=False, model=1, version=2),
    # Triton's own
    "ModelConfig": _OF_A_MODEL,
    "ModelStatistics": _OF_A_MODEL,
    "TraceSetting": Method(model=2),
}

METHODS: Final[Mapping[str, Method]] = {
    **{_V2 + name: method for name, method in (_OF_V2 | _OF_A_REPOSITORY).items()},
    **{_REPOSITORY + name: method for name, method in _OF_A_REPOSITORY.items()},
    **{_OMI + name: _OF_A_SERVER for name in ("Status", "Run", "Shutdown")},
}
UNKNOWN: Final = Method(unary=False)
STATUS: Final = _OMI + "Status"
RUN: Final = _OMI + "Run"
SHUTDOWN: Final = _OMI + "Shutdown"


def read_names(method: Method, message: bytes) -> tuple[str | None, str | None]:
    """Return the model and the version that a request names; None for one that it does not name."""
    if method.model is None:
        return None, None
    values = read_texts(message, {method.model, method.version or method.model})
    return values.get(method.model), values.get(method.version) if method.version else None
