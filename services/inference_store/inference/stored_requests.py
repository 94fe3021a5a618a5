"""The request of an inference as its metadata blob keeps it: read, rebuilt, and sent again as a
replay.

The proxy writes it (proxy/capture/stored_request.py), and docs/reference/proxy.md describes the
form. A replay carries a header that names its job and the inference that it repeats: the proxy
makes its id and two standard metadata of it, so that a call that was sent twice has one id.
"""

import json
import re
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

from inference_store.inference.json_text import UnreadableJson, cut_members, read_json

_DATATYPES: Final = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 BF16 FP32 FP64"
CODES: Final[Mapping[str, str]] = dict(zip(_DATATYPES.split(), "?BHIQbhiqeHfd", strict=True))
"""The struct code of each datatype but BYTES; of BF16, the upper half of an FP32, of its bits."""
BYTES: Final = "BYTES"
LENGTH: Final = struct.Struct("<I")
"""What precedes each element of raw BYTES."""


def encoded(datatype: str, values: Sequence[bool | int | float | bytes]) -> bytes | None:
    """Return values as a raw tensor; None if the datatype is unknown or a value does not fit."""
    try:
        if datatype == BYTES:
            elements = [value for value in values if isinstance(value, bytes)]
            packed = b"".join(LENGTH.pack(len(element)) + element for element in elements)
            return packed if len(elements) == len(values) else None
        if datatype == "BF16":
            wide = struct.pack(f"<{len(values)}f", *values)
            narrow = bytearray(2 * len(values))
            narrow[::2], narrow[1::2] = wide[2::4], wide[3::4]
            return bytes(narrow)
        return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)
    except (KeyError, struct.error, OverflowError):
        return None


def write(reference: Mapping[str, Any], datum: bytes) -> bytes:
    """Write what a reference refers to: docs/reference/proxy.md says how."""
    value, form = datum[reference.get("from", 0) : reference.get("to")], reference["data"]
    if form == "bytes":
        return value
    if form == "decoded":
        return b64decode(value)
    if form == "base64":
        text = b64encode(value).decode()
    elif form in ("text", "ascii"):
        text = json.dumps(value.decode(), ensure_ascii=form == "ascii")[1:-1]
    else:
        return encoded(form, json.loads(value)) or b""
    for plain, escaped in reference.get("escapes", {}).items():
        text = text.replace(plain, escaped)
    return text.encode()


# A request that is sent again.

Unsendable: TypeAlias = Literal[
    "not_kept", "input_gone", "too_large", "unreadable", "protocol", "version"
]
"""Why a request cannot be sent again: docs/how-to/replay.md says what each means."""
# Beside what HTTP itself writes: whatever a stranger's metadata blob names stays out.
_NOT_SENT: Final = re.compile(
    "host|content-(?:length|encoding)|transfer-encoding|connection|keep-alive|te|trailer|upgrade"
    "|expect|proxy-.*|forwarded|x-forwarded-.*|authorization|cookie|inference-store-replay"
)
_HEADER: Final = re.compile(r"[a-z0-9!#$%&'+*.^_`|~-]+")
_UNWRITABLE: Final = re.compile("[\x00-\x08\x0a-\x1f\x7f]|[^\x00-\xff]")
# Nothing but inference is asked for: a stored path may be a stranger's.
_V2: Final = re.compile(
    r"(?P<before>(?:/[\w.~-]+)*/v2/models/)[^/?#]+(?:/versions/[^/?#]+)?"
    r"(?P<after>/(?:infer|generate|generate_stream)/?)"
)
_V1: Final = re.compile(
    r"(?P<before>(?:/[\w.~-]+)*/v1/models/)[^/:?#]+(?P<after>:(?:predict|explain))"
)
_GRPC: Final = re.compile(r"/inference\.GRPCInferenceService/Model(?:Stream)?Infer")
_NAMED_IN_BODY: Final = re.compile(
    r"(?:/[\w.~-]+)*/(?:(?:chat/)?completions|responses|embeddings|messages|invocations|infer)/?"
)


class NotSendable(ValueError):
    """A request cannot be sent again; `reason` says why."""

    def __init__(self, reason: Unsendable) -> None:
        super().__init__(reason)
        self.reason = reason


class Target(NamedTuple):
    """The model that replays go to. `model` None: the one that was called."""

    model: str | None
    version: str | None


class Request(NamedTuple):
    """A call over REST, or over gRPC: then its headers are metadata, and its body is one message
    that names the model."""

    path: str
    """With percent-escapes; it begins with a slash."""
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def is_grpc(self) -> bool:
        """Whether it is made over gRPC."""
        return _GRPC.fullmatch(self.path) is not None


def rebuild(blob: bytes, datum: bytes | None, target: Target) -> Request:
    """Return the request that a metadata blob keeps, to be sent to a model; over gRPC, still to the
    one that was called. `datum`: the data blob; None: there is none. Raises NotSendable."""
    try:
        stored = read_json(cut_members(blob).get("request", b"null"))
        messages = None if stored is None else stored["messages"]
        if messages is None:
            raise NotSendable("not_kept")
        # over gRPC the method is the path
        if stored["method"] not in ("POST", stored["path"]) or len(messages) > 1:
            raise NotSendable("protocol")
        parts = messages[0] if messages else []
        if datum is None and any(isinstance(part, dict) and "data" in part for part in parts):
            raise NotSendable("input_gone")
        body = b"".join(_read_part(part, datum or b"") for part in parts)
        headers = [(str(name), str(value)) for name, value in stored["headers"]]
        request = Request(str(stored["path"]), str(stored["query"]), headers, body)
        return _address(request, target)
    except NotSendable:
        raise
    except (UnreadableJson, ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise NotSendable("unreadable") from None


def _read_part(part: Any, datum: bytes) -> bytes:
    if isinstance(part, str):
        return part.encode("utf-8", "surrogatepass")
    return b64decode(part["base64"]) if "base64" in part else write(part, datum)


def _address(request: Request, target: Target) -> Request:
    """Return the request for another model or version, without headers that are not for it."""
    headers = [
        (name, value)
        for name, value in request.headers
        if _HEADER.fullmatch(name) and not (_NOT_SENT.fullmatch(name) or _UNWRITABLE.search(value))
    ]
    path, body = request.path, request.body
    if {".", ".."} & {*unquote(path).split("/")} or re.search(r"[\s#]", request.query):
        raise NotSendable("unreadable")
    is_same = target == (None, None)
    if _GRPC.fullmatch(path):
        if not body:  # a late answer of a stream, without its request
            raise NotSendable("not_kept")
    elif match := _V2.fullmatch(path) or _V1.fullmatch(path):
        if target.version is not None and match.re is not _V2:
            raise NotSendable("version")
        if not is_same:
            name = _find_name(path) if target.model is None else quote(target.model, safe="")
            version = f"/versions/{quote(target.version, safe='')}" if target.version else ""
            path = f"{match['before']}{name}{version}{match['after']}"
    elif not _NAMED_IN_BODY.fullmatch(path):
        raise NotSendable("protocol")
    elif target.version is not None:
        raise NotSendable("version")
    elif not is_same:
        body = _rename(body, target.model or "")
    return Request(path, request.query, headers, body)


def _find_name(path: str) -> str:
    return re.split("[/:]", path.partition("/models/")[2])[0]


def _rename(body: bytes, model: str) -> bytes:
    members = cut_members(body)
    if "model" not in members:
        raise NotSendable("protocol")
    members["model"] = json.dumps(model).encode()
    return b"{" + b",".join(json.dumps(n).encode() + b":" + v for n, v in members.items()) + b"}"


# How a replay names itself.

REPLAY_HEADER: Final = "inference-store-replay"
REPLAY, REPLAY_OF = "replay", "replay_of"
"""The standard metadata of a replay: its job, and the uid of the inference that it repeats."""


class ReplayMark(NamedTuple):
    """Which inference a call repeats, and for which job."""

    job: UUID
    of: UUID

    @property
    def header(self) -> str:
        """The value of the header."""
        return f"{self.job}/{self.of}"

    @property
    def inference_id(self) -> str:
        """The id of the inference that the call becomes, however often it is sent."""
        return f"replay-{self.job}-{self.of}"

    @property
    def metadata(self) -> dict[str, str]:
        """Its standard metadata."""
        return {REPLAY: str(self.job), REPLAY_OF: str(self.of)}

    @classmethod
    def of_id(cls, inference_id: str) -> Self | None:
        """Return what the id of a replay says; None for another id."""
        text = inference_id.removeprefix("replay-")
        if len(text) == len(inference_id) or text[36:37] != "-":
            return None
        return cls.read(f"{text[:36]}/{text[37:]}")

    @classmethod
    def read(cls, header: str | None) -> Self | None:
        """Return what a header says; None if it says nothing that can be read."""
        if header is None:
            return None
        job, _, of = header.partition("/")
        try:
            return cls(UUID(job), UUID(of))
        except ValueError:
            return None
