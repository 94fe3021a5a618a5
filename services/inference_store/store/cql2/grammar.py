"""The parser made from `grammar.lark`, and which names need no quotes in it."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from lark import Lark, Token

from .build import Build

_KEYWORDS: Final = {
    word: word.upper()
    for word in ("or", "and", "not", "like", "between", "in", "is", "null", "true", "false", "div")
}
_BEFORE_BRACKETS: Final = re.compile(
    "date|timestamp|interval|bbox|(multi)?(point|linestring|polygon)|geometrycollection"
    "|casei|accenti",
    re.IGNORECASE,
)


@cache
def parser() -> Lark:
    """Made once. It never recurses, whatever it reads."""
    # The basic lexer and not the contextual one: so a reserved word is one everywhere.
    return Lark(
        (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        transformer=Build(),
        keep_all_tokens=True,
        lexer_callbacks={"NAME": _keyword},
    )


def is_bare(name: str) -> bool:
    """It is a name without quotes, in the standard's sense: an identifier and no keyword."""
    reserved = name.lower() in _KEYWORDS or _BEFORE_BRACKETS.fullmatch(name)
    return not reserved and _identifier().fullmatch(name) is not None


@cache
def _identifier() -> re.Pattern[str]:
    return re.compile(parser().get_terminal("NAME").pattern.to_regexp())


def _keyword(token: Token) -> Token:
    kind = _KEYWORDS.get(token.lower()) if token.isascii() else None
    return token if kind is None else token.update(type=kind)
