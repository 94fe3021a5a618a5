"""Which headers of a request are kept, as metadata or to send it again; never a secret."""

import re
from collections.abc import Sequence
from urllib.parse import unquote_plus

from inference_store.inference.json_text import storable
from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.metadata_header import BINARY_HEADER, METADATA_HEADER

METADATA_HEADERS = frozenset({METADATA_HEADER, BINARY_HEADER, "chariot-inference-parameters"})
"""Headers that hold the caller's metadata."""
JSON_LENGTH = "inference-header-content-length"
"""Says how much of a body is JSON, where tensors follow it."""
_OF_THE_LENGTH = frozenset({"content-encoding", "content-length", JSON_LENGTH})
# What the body cannot be understood without.
_NEEDED = frozenset({"content-type", "accept", JSON_LENGTH, "grpc-encoding"}) | METADATA_HEADERS
# Whatever the configuration says. Names are taken apart at what is no letter or digit.
_SECRET = re.compile(
    r"authori[sz]ation|cookie|secret|passw(or)?d|credential|token(?!s)|signature|session"
    r"|api-?_?key|access-?_?key|subscription-?_?key|private-?_?key|^key$|^sig$|x-auth|assertion"
    r"|client-cert|^pw$|^pwd$|^jwt$|bearer|passphrase|license|hmac|^tokens$"
    r"|(app|functions|subscription)-?_?key$|(^|[-_.])(auth|authentication|pass|otp)$|^code$",
    re.IGNORECASE,
)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_NO_TRACE = "0" * 32
_LONGEST = 8192


def is_secret(name: str) -> bool:
    """Whether a header's or a query parameter's name says that it holds a secret."""
    return _SECRET.search(name) is not None


def kept_headers(headers: Headers, allowed: Sequence[str]) -> list[list[str]]:
    """Those that stand beside the request: allowed, or needed to send it again."""
    names = _NEEDED | {name.lower() for name in allowed}
    return [[name, value] for name, value in headers if name in names and not is_secret(name)]


def header_metadata(headers: Headers, allowed: Sequence[str]) -> dict[str, str]:
    """The allowed headers as metadata; one that repeats, joined by commas."""
    found: dict[str, str] = {}
    names = {name.lower() for name in allowed}
    for name, value in headers:
        if name in names and not is_secret(name):
            text = value[:_LONGEST].replace("\0", "\ufffd")
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def trace_of(headers: Headers) -> tuple[str, str] | None:
    """The `traceparent` and its trace id, where it is one."""
    value = header(headers, "traceparent")
    found = None if value is None else _TRACEPARENT.fullmatch(value.strip())
    if value is None or found is None or found[1] == _NO_TRACE or not storable(value):
        return None
    return value.strip(), found[1]


def kept_query(query: str) -> str:
    """The query without parameters whose names say that they hold a secret."""
    if not query:
        return ""
    parts = re.split("[&;]", query)
    return "&".join(part for part in parts if not is_secret(unquote_plus(part.split("=", 1)[0])))


def headers_of(body: bytes, json_length: int | None, headers: Headers) -> Headers:
    """The headers of a body that was written anew; `json_length`: of the JSON before tensors."""
    kept = [(name, value) for name, value in headers if name not in _OF_THE_LENGTH]
    if json_length is not None:
        kept.append((JSON_LENGTH, str(json_length)))
    return [*kept, ("content-length", str(len(body)))]
