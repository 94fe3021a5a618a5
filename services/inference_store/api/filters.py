"""A filter of a request, read once: large ones beside the loop that answers everybody."""

from typing import Any, Literal

from inference_store.store.cql2 import parse
from inference_store.store.cql2.tree import Node

from .reading import read_aside

FilterLang = Literal["cql2-text", "cql2-json"]
_SMALL_CHARACTERS = 1_000


async def read_filter(asked: Any, lang: FilterLang | None, *, path: str = "filter") -> Node | None:
    """The tree of a body's `filter`; None without one. Raises InvalidFilter, NotKept."""
    if asked is None:
        return None
    if isinstance(asked, str) and len(asked) <= _SMALL_CHARACTERS:
        return parse(asked, lang=lang, path=path)
    return await read_aside(parse, asked, lang=lang, path=path)
