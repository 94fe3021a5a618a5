"""Ids in paths: matched while they are escaped, decoded afterwards, for ids hold `/`.

Starlette matches routes on the decoded path, where `a%2Fb` would be two segments.
"""

from typing import Annotated
from urllib.parse import quote, unquote_to_bytes

from fastapi import Path
from pydantic import AfterValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from inference_store.inference.ids import check_id


class EscapedPaths:
    """ASGI: routes are matched on the path as it came."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path") or quote(scope["path"]).encode()
            # In place: those outside see which route was taken in the same scope.
            scope["path"] = raw.decode("latin-1")
        await self._app(scope, receive, send)


def decode_segment(segment: str) -> str:
    """Return the id that a segment of the path spells. Raises ValueError."""
    try:
        name = unquote_to_bytes(segment.encode("latin-1")).decode("utf-8")
    except UnicodeError:
        raise ValueError("the id is not UTF-8 in percent escapes") from None
    return check_id(name)


def escape_segment(name: str) -> str:
    """Return an id as one segment of a path."""
    return quote(name, safe="")


ProjectId = Annotated[
    str,
    Path(description="The project's id, percent-escaped.", examples=["warehouse"]),
    AfterValidator(decode_segment),
]
ModelId = Annotated[
    str,
    Path(description="The model's id, percent-escaped.", examples=["hallway-detector"]),
    AfterValidator(decode_segment),
]
InferenceId = Annotated[
    str,
    Path(
        description="The inference's id, percent-escaped, an alias of it, or `uid:<uuid>`. Where"
        " an id repeats, it means the newest.",
        examples=["uid:019ac3f2-7c00-8123-9abc-0123456789ab", "request-17"],
    ),
    AfterValidator(decode_segment),
]
