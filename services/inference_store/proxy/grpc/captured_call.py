"""What forwarding reads of a gRPC call: the metadata to pass on, its method, and of messages the
model's name, the id, and the end of a request's answers."""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from grpc import StatusCode

from inference_store.grpc_messages import parsed
from inference_store.proxy.exchange import Headers
from inference_store.proxy.protocols.v2_grpc import DIALECTS, find_dialect

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
# gRPC's own, which each side creates: those of a connection, or those that would conflict with its
# own.
_RESERVED: Final = frozenset(
    {"connection", "content-type", "host", "proxy-connection", "te", "user-agent"}
    | {"grpc-accept-encoding", "grpc-encoding", "grpc-message", "grpc-message-type"}
    | {"grpc-previous-rpc-attempts", "grpc-retry-pushback-ms", "grpc-status", "grpc-timeout"}
)


def select_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...]:
    """Return the metadata to forward, in either direction: names and values unchanged, in order."""
    return tuple(
        (key, value)
        for key, value in metadata or ()
        if key not in _RESERVED and not key.startswith(":")
    )


def metadata_as_headers(metadata: Metadata | None) -> Headers:
    """Return metadata as headers: binary values (names end in `-bin`) in Base64, as on the wire."""
    return tuple(
        (key, value if isinstance(value, str) else b64encode(value).rstrip(b"=").decode())
        for key, value in metadata or ()
    )


async def abort(context: Context, code: StatusCode, details: str = "") -> NoReturn:
    """End a call with a status; returning would send an empty answer before it. Raises
    CancelledError if the caller is gone: gRPC would log its own error as a fault of ours."""
    try:
        await context.abort(code, details)
    except grpc.aio.AbortError:  # the status is sent
        raise
    except grpc.aio.BaseError as exc:
        raise asyncio.CancelledError from exc


@dataclass(frozen=True, slots=True)
class Method:
    """A known method. Others are forwarded as streams both ways, which carry every arity."""

    unary: bool = True
    names: Sequence[str] = ()
    """Where its request has the model and the version: at the numbers of these fields of
    ModelReadyRequest, which are 1 and 2."""


_V2: Final = "/inference.GRPCInferenceService/"
_OMI: Final = "/ModzyModel/"
UNKNOWN: Final = Method(unary=False)
STATUS, SHUTDOWN = f"{_OMI}Status", f"{_OMI}Shutdown"
_OF_A_REPOSITORY: Final = {
    "RepositoryIndex": Method(),
    "RepositoryModelLoad": Method(names=("version",)),
    "RepositoryModelUnload": Method(names=("version",)),
}
_OF_A_SERVER: Final = ("ServerLive", "ServerReady", "ServerMetadata")
# ModelConfig and ModelStatistics are Triton's own
_OF_A_MODEL: Final = ("Ready", "Metadata", "Infer", "Config", "Statistics")
METHODS: Final[Mapping[str, Method]] = {
    **{f"{_V2}{name}": Method() for name in _OF_A_SERVER},
    **{f"{_V2}Model{name}": Method(names=("name", "version")) for name in _OF_A_MODEL},
    f"{_V2}ModelStreamInfer": Method(unary=False, names=("name", "version")),
    f"{_V2}TraceSetting": Method(names=("version",)),
    **{
        f"{service}{name}": method
        for service in (_V2, "/inference.model_repository.ModelRepositoryService/")
        for name, method in _OF_A_REPOSITORY.items()
    },
    **{path: Method() for path in (STATUS, f"{_OMI}Run", SHUTDOWN)},
}


def read_names(method: Method, written: bytes) -> tuple[str | None, str | None]:
    """Return the model and the version that a request names; None for one that it does not name."""
    # this message has only two texts: the parser skips tensors
    read = parsed("inference.ModelReadyRequest", written) if method.names else None
    names = [getattr(read, name, None) or None for name in method.names]
    model, version = (*names, None, None)[:2]
    return model, version


_LONGEST_ID: Final = 256


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """The id of an answer; empty if it has none."""

    id: str = ""
    is_last: bool | None = None
    """Whether its request is answered now; None if it does not say."""


def read_request(written: bytes) -> tuple[str, bool]:
    """Return the id of a ModelInferRequest, and whether it asks the server to mark the end of its
    answers; of any bytes."""
    read = parsed("inference.ModelInferRequest", written)
    is_asked = _read_mark(read, "triton_enable_empty_final_response") is True
    return ("" if read is None else read.id[:_LONGEST_ID]), is_asked


def read_answer(written: bytes, dialect: str | None) -> AnswerHead:
    """Read the head of an answer in a dialect, or in the one that it shows; any bytes. An error in
    Triton's message ends the request."""
    dialect = dialect or find_dialect([written])
    read, is_error = parsed(f"inference.{DIALECTS[dialect]}", written), False
    if read is not None and dialect == "triton":
        read, is_error = read.infer_response, bool(read.error_message)
    is_last = is_error or _read_mark(read, "triton_final_response")
    return AnswerHead("" if read is None else read.id[:_LONGEST_ID], is_last)


def _read_mark(read: Any, name: str) -> bool | None:
    if read is None or name not in read.parameters:
        return None
    mark = read.parameters[name]
    return mark.bool_param if mark.HasField("bool_param") else None
