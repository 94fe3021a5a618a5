"""Spans of time and of scores in bodies, query parameters, and pages of lists."""

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from types import GenericAlias
from typing import Annotated, Any, Generic, Self, TypeAlias, TypeVar
from uuid import UUID

import orjson
from fastapi import Query
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from inference_store.inference.errors import InvalidCursor
from inference_store.inference.field_docs import Body, Instant, Number, field_docs
from inference_store.platform.json_encoding import format_instant

from .answer import Answer, Shown


def _not_relative(value: Any) -> Any:
    if isinstance(value, str) and "now" in value.lower():
        raise ValueError(
            "a relative time belongs in `filter`: received_at >= now() - duration('PT1H')"
        )
    return value


Received: TypeAlias = Annotated[Instant, BeforeValidator(_not_relative)]
"""A bound of when the request came in."""


def refuse_no_time(until: datetime | None, since: datetime | None) -> datetime | None:
    """The end of a half-open span. Raises ValueError where nothing lies in it."""
    if since is not None and until is not None and not since < until:
        raise ValueError(f"it must be later than {since.isoformat()}")
    return until


class Window(Body):
    """A half-open span of time: `from` is in it, `to` is not."""

    since: Received | None = Field(default=None, alias="from", examples=["2026-11-01T00:00:00Z"])
    until: Received | None = Field(default=None, alias="to", examples=["2026-12-01T00:00:00Z"])

    @field_validator("until")
    @classmethod
    def _holds_some_time(cls, until: datetime | None, info: ValidationInfo) -> datetime | None:
        return refuse_no_time(until, info.data.get("since"))


class ScoreRange(Body):
    """Bounds of a score; all that are given must hold."""

    gt: Number | None = None
    gte: Number | None = None
    lt: Number | None = None
    lte: Number | None = None
    eq: Number | None = None

    @model_validator(mode="after")
    def _holds_some_score(self) -> Self:
        lower = max((b for b in (self.gt, self.gte, self.eq) if b is not None), default=None)
        upper = min((b for b in (self.lt, self.lte, self.eq) if b is not None), default=None)
        if lower is None or upper is None or lower < upper:
            return self
        if lower > upper or lower in (self.gt, self.lt):
            raise ValueError(
                f"the lower bound {lower:g} leaves no score below the upper bound {upper:g}"
            )
        return self


# Pages of lists: their parameters, and opaque cursors of the last item's sort key.


class Parameters(BaseModel):
    """Query parameters: text that is read as what it should be."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """FastAPI documents parameters by their fields, never by the model's JSON schema."""
        for name, doc in field_docs(cls).items():
            cls.model_fields[name].description = doc


class ReceivedParameters(Parameters):
    """Of which inferences: a half-open span of the time in which they were received."""

    received_from: Received | None = None
    """Received then or later."""
    received_to: Received | None = None
    """Received before then."""

    @field_validator("received_to")
    @classmethod
    def _holds_some_time(cls, until: datetime | None, info: ValidationInfo) -> datetime | None:
        return refuse_no_time(until, info.data.get("received_from"))


def by_time(at: str = "requested_at") -> Callable[[Any], tuple[str | None, str]]:
    """Return the key of lists in order of the attribute `at`, a time, and of `id`."""
    return lambda row: (format_instant(getattr(row, at)), str(row.id))


T = TypeVar("T")
InQuery: TypeAlias = Annotated[T, Query()]
"""Parameters, of the query of a request."""
Item = TypeVar("Item")
ShownItem = TypeVar("ShownItem", bound=Shown)


class Page(Shown):
    """A page of a list."""

    items: Sequence[Any]
    next: str | None
    """The cursor of the next page; null on the last one."""


class PageAnswer(Answer[Page], Generic[Item]):
    """An answer of a page of a list."""

    def __init__(self, items: Sequence[Item], following: str | None) -> None:
        super().__init__(Page(items=items, next=following))


def page_of(item: type[Shown], order: str) -> type[Page]:
    """Return the model of a page of these, which the OpenAPI names after them."""
    name = item.__name__.removeprefix("Shown").removeprefix("Listed")
    items: Any = GenericAlias(list, (item,))
    says = f"A page, {order}."
    return create_model(f"{name}Page", __base__=Page, __doc__=says, items=(items, ...))


class PageParameters(Parameters):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """The most items on a page."""
    cursor: Annotated[str, Field(max_length=2000)] | None = None
    """`next` of the previous page."""

    def find_after(self, kind: type[Any]) -> Any | None:
        """Return the key of one part to continue after; None without a cursor. Raises
        InvalidCursor."""
        key = decode(self.cursor, kind)
        return None if key is None else key[0]

    def find_before(self, kind: type[Any] = UUID) -> tuple[datetime, Any] | None:
        """Return the time and id to continue before; None without a cursor. Raises
        InvalidCursor."""
        key = decode(self.cursor, str, str)
        if key is None:
            return None
        try:
            return datetime.fromisoformat(key[0]).astimezone(UTC), kind(key[1])
        except (ValueError, OverflowError):
            raise refuse_cursor() from None

    def cut(
        self, rows: Sequence[Item], key: Callable[[Item], Any]
    ) -> tuple[Sequence[Item], str | None]:
        """Return a page of rows, one more of which were read, and the cursor of the next page.

        `key`: of a row; of one part, or a tuple of several.
        """
        items = rows[: self.limit]
        if len(rows) <= self.limit:
            return items, None
        last = key(items[-1])
        return items, encode(*last) if isinstance(last, tuple) else encode(last)

    def answer(
        self,
        rows: Sequence[Item],
        show: Callable[[Item], ShownItem],
        key: Callable[[Item], Any] | None = None,
    ) -> PageAnswer[ShownItem]:
        """Answer with a page of rows, one more of which were read; `key` as of `cut`; None: the
        time of the request and the id."""
        items, following = self.cut(rows, key or by_time())
        return PageAnswer([show(row) for row in items], following)


def encode(*key: Any) -> str:
    """Return a cursor that continues after the item with this key."""
    return base64.urlsafe_b64encode(orjson.dumps(key)).rstrip(b"=").decode()


def decode(cursor: str | None, *kinds: type) -> Sequence[Any] | None:
    """Return the key to continue after; None without a cursor. Raises InvalidCursor."""
    if cursor is None:
        return None
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key = orjson.loads(raw)
    except (binascii.Error, ValueError):
        key = None
    fits = isinstance(key, list) and [type(part) for part in key] == list(kinds)
    if not fits or not all(_is_storable(part) for part in key):
        raise refuse_cursor()
    parts: list[Any] = key
    return parts


def refuse_cursor(path: str = "query.cursor") -> InvalidCursor:
    """Return the refusal of a cursor that this list has not given."""
    return InvalidCursor.of(path, "it is damaged, or of another list: send the request without it")


def _is_storable(part: Any) -> bool:
    """Return whether Postgres can compare it: text without NUL, an integer of eight bytes."""
    if type(part) is int:
        return -(2**63) <= part < 2**63
    return type(part) is not str or "\0" not in part
