"""The parser made from `grammar.lark`."""

from functools import cache
from pathlib import Path

from lark import Lark, Token

from .build import Build
from .keywords import KEYWORDS


@cache
def parser() -> Lark:
    """Return the parser, which is built once. It never recurses, whatever it reads."""
    # The basic lexer, not the contextual one: a reserved word is reserved everywhere.
    return Lark(
        (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8"),
        parser="lalr",
        lexer="basic",
        transformer=Build(),
        keep_all_tokens=True,
        lexer_callbacks={"NAME": _keyword},
    )


def _keyword(token: Token) -> Token:
    kind = KEYWORDS.get(token.lower()) if token.isascii() else None
    return token if kind is None else token.update(type=kind)
