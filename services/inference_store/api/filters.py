"""Reads the filter of a request once; large ones in a thread, beside the event loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from inference_store.query import cursor as cursors
from inference_store.query.cql2 import Clock, FilterLang, parse, resolved_in
from inference_store.query.cql2.tree import Node

from .reader_thread import read_in_thread
from .schemas.resolved import ResolvedTime

_SMALL_CHARACTERS: Final = 1_000


async def read_filter(
    filter: Any, lang: FilterLang | None, *, clock: Clock, path: str = "filter"
) -> Node | None:
    """Return the tree of a body's `filter`; None without one. Raises InvalidFilter, NotKept."""
    if filter is None:
        return None
    if isinstance(filter, str) and len(filter) <= _SMALL_CHARACTERS:
        return parse(filter, lang=lang, path=path, clock=clock)
    return await read_in_thread(parse, filter, lang=lang, path=path, clock=clock)


@dataclass(frozen=True, slots=True)
class RequestedFilter:
    """The filter of a request. `now`: the instant that its relative times refer to."""

    tree: Node | None
    now: datetime

    @property
    def answer_members(self) -> Mapping[str, Any]:
        """Its resolved relative times for the answer; empty if it has none."""
        resolved = [ResolvedTime.show(resolved_time) for resolved_time in resolved_in(self.tree)]
        return {"resolved": resolved} if resolved else {}

    @property
    def pin(self) -> Callable[[str], str]:
        """A function that adds the instant of the relative times to a cursor."""
        if resolved_in(self.tree):
            return partial(cursors.pin, now=self.now)
        return lambda cursor: cursor


async def read_requested_filter(
    filter: Any, lang: FilterLang | None, *, now: datetime | None = None
) -> RequestedFilter:
    """Read a request's filter, with its relative times resolved at `now`, or at present if None.

    Raises InvalidFilter, NotKept.
    """
    at = datetime.now(UTC) if now is None else now
    return RequestedFilter(await read_filter(filter, lang, clock=Clock(at)), at)
