"""Selects the headers of a request to keep, as metadata or to send it again; never a secret."""

import re
from collections.abc import Sequence
from urllib.parse import unquote_plus

from inference_store.inference.json_text import storable
from inference_store.proxy.encodings import BINARY_HEADER, METADATA_HEADER
from inference_store.proxy.exchange import Headers, header
from inference_store.proxy.protocols.v2 import JSON_LENGTH

METADATA_HEADERS = frozenset({METADATA_HEADER, BINARY_HEADER, "chariot-inference-parameters"})
"""Headers that hold the caller's metadata."""
_OF_THE_LENGTH = frozenset({"content-encoding", "content-length", JSON_LENGTH})
# Headers that are needed to read the body.
_NEEDED = frozenset({"content-type", "accept", JSON_LENGTH, "grpc-encoding"}) | METADATA_HEADERS
# Whatever the configuration says. Names are split at characters that are not letters or digits.
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
    """Return whether the name of a header or a query parameter says that it holds a secret."""
    return _SECRET.search(name) is not None


def select_headers(headers: Headers, allowed: Sequence[str]) -> list[list[str]]:
    """Return the headers to store with the request: those allowed, or needed to send it again."""
    names = _NEEDED | {name.lower() for name in allowed}
    return [[name, value] for name, value in headers if name in names and not is_secret(name)]


def metadata_from_headers(headers: Headers, allowed: Sequence[str]) -> dict[str, str]:
    """Return the allowed headers as metadata; repeated ones are joined by commas."""
    metadata: dict[str, str] = {}
    names = {name.lower() for name in allowed}
    for name, value in headers:
        if name in names and not is_secret(name):
            text = value[:_LONGEST].replace("\0", "\ufffd")
            metadata[name] = f"{metadata[name]}, {text}" if name in metadata else text
    return metadata


def find_trace(headers: Headers) -> tuple[str, str] | None:
    """Return the `traceparent` and its trace id; None if there is no valid one."""
    value = header(headers, "traceparent")
    match = None if value is None else _TRACEPARENT.fullmatch(value.strip())
    if value is None or match is None or match[1] == _NO_TRACE or not storable(value):
        return None
    return value.strip(), match[1]


def remove_secrets(query: str) -> str:
    """Return the query without parameters whose names say that they hold a secret."""
    if not query:
        return ""
    parts = re.split("[&;]", query)
    return "&".join(part for part in parts if not is_secret(unquote_plus(part.split("=", 1)[0])))


def headers_of(body: bytes, json_length: int | None, headers: Headers) -> Headers:
    """Return the headers of a rewritten body; `json_length`: the length of the JSON before
    tensors."""
    remaining = [(name, value) for name, value in headers if name not in _OF_THE_LENGTH]
    if json_length is not None:
        remaining.append((JSON_LENGTH, str(json_length)))
    return [*remaining, ("content-length", str(len(body)))]
