"""What a caller is told where the model server does not answer: the only answers of our own."""

import asyncio
import re
from typing import Final

import orjson
from aiohttp import ClientError, ConnectionTimeoutError, ServerTimeoutError

from .headers import Raw

AWAY: Final = (ClientError, OSError, asyncio.TimeoutError)
_LONGEST: Final = 300
_UNWRITABLE: Final = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]")


def not_an_answer(status: int, headers: Raw) -> str | None:
    """What keeps an upstream's answer from being passed on; None: nothing. The server below writes
    no statuses but HTTP's, and a change of protocol was not asked for."""
    if not 200 <= status <= 599:
        return f"answered with the status {status}, which is none of HTTP's for an answer"
    if _UNWRITABLE.search(b"".join(value for _, value in headers)):
        return "answered with control characters in a header"
    return None


def failure_of(upstream: str, error: BaseException) -> tuple[int, str]:
    """Status and sentence for what went wrong on the way to an upstream."""
    if isinstance(error, ConnectionTimeoutError):
        return 504, f"the upstream {upstream} did not accept a connection in time"
    if isinstance(error, ServerTimeoutError | asyncio.TimeoutError):
        return 504, f"the upstream {upstream} did not answer in time"
    return 502, f"the upstream {upstream} cannot be reached: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """In the words of the system or of TLS. Those of a parser quote the answer: it is named."""
    name = type(error).__name__
    return f"{name}: {str(error)[:_LONGEST]}" if isinstance(error, OSError) else name


def is_of_the_request(error: BaseException) -> bool:
    """An address or a header that cannot be written; a certificate's error is a ValueError, too."""
    return isinstance(error, ValueError) and not isinstance(error, OSError)


def not_passed_on(error: BaseException) -> str:
    """The sentence for it."""
    return f"the request cannot be passed on: {str(error)[:_LONGEST]}"


def not_a_path(target: str) -> str | None:
    """Why a request's target is not passed on; None: it is. Behind an address anything but a path
    could lead somewhere else: `*@elsewhere` would."""
    if target.startswith("/"):
        return None
    return f"the request's target {target[:80]!r} is no path: it must begin with /"


def body_of(sentence: str) -> bytes:
    """The answer's body, as the Open Inference Protocol spells errors."""
    return orjson.dumps({"error": sentence})
