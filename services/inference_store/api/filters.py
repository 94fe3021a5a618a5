"""Reads the filter of a request once; large ones in a thread, beside the event loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from inference_store.query import cursor as cursors
from inference_store.query.cql2 import Clock, parse, resolved_in
from inference_store.query.cql2.tree import Node

from .answer import to_dict
from .reader_thread import read_in_thread

FilterLang = Literal["cql2-text", "cql2-json"]
_SMALL_CHARACTERS: Final = 1_000


async def read_filter(
    asked: Any, lang: FilterLang | None, *, clock: Clock, path: str = "filter"
) -> Node | None:
    """Return the tree of a body's `filter`; None without one. Raises InvalidFilter, NotKept."""
    if asked is None:
        return None
    if isinstance(asked, str) and len(asked) <= _SMALL_CHARACTERS:
        return parse(asked, lang=lang, path=path, clock=clock)
    return await read_in_thread(parse, asked, lang=lang, path=path, clock=clock)


@dataclass(frozen=True, slots=True)
class RequestedFilter:
    """The filter of a request. `now`: the instant that its relative times refer to."""

    tree: Node | None
    now: datetime

    @property
    def told(self) -> Mapping[str, Any]:
        """Its resolved relative times for the answer; empty if it has none."""
        found = [to_dict(each) for each in resolved_in(self.tree)]
        return {"resolved": found} if found else {}

    @property
    def pin(self) -> Callable[[str], str]:
        """A function that adds the instant of the relative times to a cursor."""
        if resolved_in(self.tree):
            return partial(cursors.pin, now=self.now)
        return lambda cursor: cursor


async def read_requested_filter(
    asked: Any, lang: FilterLang | None, *, now: datetime | None = None
) -> RequestedFilter:
    """Read a request's filter, with its relative times resolved at `now`, or at present if None.

    Raises InvalidFilter, NotKept.
    """
    at = datetime.now(UTC) if now is None else now
    return RequestedFilter(await read_filter(asked, lang, clock=Clock(at)), at)
