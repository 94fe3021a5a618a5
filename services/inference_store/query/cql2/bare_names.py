"""The names that need no quotes in CQL2-Text."""

import re
from functools import cache
from typing import Final

from .keywords import KEYWORDS

_BEFORE_BRACKETS: Final = re.compile(
    "date|timestamp|interval|bbox|(multi)?(point|linestring|polygon)|geometrycollection"
    "|casei|accenti",
    re.IGNORECASE,
)


def is_bare(name: str) -> bool:
    """Check whether a name needs no quotes by the standard: it is an identifier and no keyword."""
    reserved = name.lower() in KEYWORDS or _BEFORE_BRACKETS.fullmatch(name)
    return not reserved and _identifier().fullmatch(name) is not None


@cache
def _identifier() -> re.Pattern[str]:
    # Lark is imported with the first text that is read or written: an ingester handles none.
    from .grammar import parser  # noqa: PLC0415

    return re.compile(parser().get_terminal("NAME").pattern.to_regexp())
