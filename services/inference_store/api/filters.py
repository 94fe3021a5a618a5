"""A filter of a request, read once: large ones beside the loop that answers everybody."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Literal

from inference_store.query import cursor as cursors
from inference_store.query.cql2 import Clock, parse, resolved_in
from inference_store.query.cql2.tree import Node

from .answer import named
from .reading import read_aside

FilterLang = Literal["cql2-text", "cql2-json"]
_SMALL_CHARACTERS: Final = 1_000


async def read_filter(
    asked: Any, lang: FilterLang | None, *, clock: Clock, path: str = "filter"
) -> Node | None:
    """The tree of a body's `filter`; None without one. Raises InvalidFilter, NotKept."""
    if asked is None:
        return None
    if isinstance(asked, str) and len(asked) <= _SMALL_CHARACTERS:
        return parse(asked, lang=lang, path=path, clock=clock)
    return await read_aside(parse, asked, lang=lang, path=path, clock=clock)


@dataclass(frozen=True, slots=True)
class AskedFilter:
    """The filter of a question. `now`: the instant that its relative times are from."""

    tree: Node | None
    now: datetime

    @property
    def told(self) -> Mapping[str, Any]:
        """What an answer says of its relative times: nothing where there are none."""
        found = [named(each) for each in resolved_in(self.tree)]
        return {"resolved": found} if found else {}

    @property
    def pin(self) -> Callable[[str], str]:
        """What gives a cursor the instant that relative times of what follows are from too."""
        if resolved_in(self.tree):
            return partial(cursors.pin, now=self.now)
        return lambda cursor: cursor


async def ask_filter(
    asked: Any, lang: FilterLang | None, *, now: datetime | None = None
) -> AskedFilter:
    """A question's filter, its relative times resolved at `now`, once for all of it; None: the
    present. Raises InvalidFilter, NotKept."""
    at = datetime.now(UTC) if now is None else now
    return AskedFilter(await read_filter(asked, lang, clock=Clock(at)), at)
