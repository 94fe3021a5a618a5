"""What a caller is told where the model server does not answer: the only answers of our own."""

import asyncio
from typing import Final

import orjson
from aiohttp import ClientError, ConnectionTimeoutError, ServerTimeoutError

AWAY: Final = (ClientError, OSError, asyncio.TimeoutError)


def failure_of(upstream: str, error: BaseException) -> tuple[int, str]:
    """Status and sentence for what went wrong on the way to an upstream."""
    if isinstance(error, ConnectionTimeoutError):
        return 504, f"the upstream {upstream} did not accept a connection in time"
    if isinstance(error, ServerTimeoutError | asyncio.TimeoutError):
        return 504, f"the upstream {upstream} did not answer in time"
    return 502, f"the upstream {upstream} cannot be reached: {error or type(error).__name__}"


def not_a_path(target: str) -> str | None:
    """Why a request's target is not passed on; None: it is. Behind an address anything but a path
    could lead somewhere else: `*@elsewhere` would."""
    if target.startswith("/"):
        return None
    return f"the request's target {target[:80]!r} is no path: it must begin with /"


def body_of(sentence: str) -> bytes:
    """The answer's body, as the Open Inference Protocol spells errors."""
    return orjson.dumps({"error": sentence})
