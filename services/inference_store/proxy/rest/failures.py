"""The answers to a caller if the model server does not answer: the only ones that the proxy
makes."""

import asyncio
import re
from typing import Final

import orjson
from aiohttp import ClientError, ConnectionTimeoutError, ServerTimeoutError

from .headers import Raw

UPSTREAM_ERRORS: Final = (ClientError, OSError, asyncio.TimeoutError)
_LONGEST: Final = 300
_UNWRITABLE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")


def find_answer_error(status: int, headers: Raw) -> str | None:
    """Return why an upstream's answer cannot be forwarded; None if it can. The HTTP server writes
    only HTTP's statuses, and no caller requested a change of protocol."""
    if not 200 <= status <= 599:
        return f"answered with the status {status}, which is none of HTTP's for an answer"
    if _UNWRITABLE.search(b"".join(value for _, value in headers)):
        return "answered with control characters in a header"
    return None


def describe_failure(upstream: str, error: BaseException) -> tuple[int, str]:
    """Return the status and the sentence for an error on the way to an upstream."""
    if isinstance(error, ConnectionTimeoutError):
        return 504, f"the upstream {upstream} did not accept a connection in time"
    if isinstance(error, ServerTimeoutError | asyncio.TimeoutError):
        return 504, f"the upstream {upstream} did not answer in time"
    return 502, f"the upstream {upstream} cannot be reached: {_describe_reason(error)}"


def _describe_reason(error: BaseException) -> str:
    """Return the text of the system or of TLS; of a parser's error, which quotes the answer, only
    the name."""
    name = type(error).__name__
    return f"{name}: {str(error)[:_LONGEST]}" if isinstance(error, OSError) else name


def is_request_error(error: BaseException) -> bool:
    """Return whether a request's address or header cannot be written; a certificate's error is a
    ValueError, too."""
    return isinstance(error, ValueError) and not isinstance(error, OSError)


def describe_request_error(error: BaseException) -> str:
    """Return the sentence for a request error."""
    return f"the request cannot be passed on: {str(error)[:_LONGEST]}"


def find_target_error(target: str) -> str | None:
    """Return why a request's target is not forwarded; None if it is. After an address, anything but
    a path could lead to another host: `*@elsewhere` would."""
    if target.startswith("/"):
        return None
    return f"the request's target {target[:80]!r} is no path: it must begin with /"


def build_body(sentence: str) -> bytes:
    """Return the answer's body, an error of the Open Inference Protocol."""
    return orjson.dumps({"error": sentence})
