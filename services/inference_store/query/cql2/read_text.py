"""Parses CQL2-Text to the tree."""

import re
from typing import Final

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from inference_store.inference.json_text import storable

from .grammar import PATH, parser
from .operations import Takes
from .relative import NO_CLOCK, Clock, resolve
from .tree import MOST_BYTES, MOST_TOKENS, Node, Refusal, SourceRange, error_of
from .verify import slip_at, verify

_TOKEN: Final = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'?|"[^"]*"?|[\w.:]+|[^\s\w]""", re.DOTALL)
_VALUES: Final = frozenset({"NAME", "QUOTED", "TEXT", "NUMBER", "TRUE", "GEOMETRY"})
_EXPECTED: Final = (
    (frozenset({"COMPARISON"}), "a comparison (= <> < <= > >=)"),
    (frozenset({"LIKE", "BETWEEN", "IN"}), "LIKE, BETWEEN, IN"),
    (frozenset({"IS"}), "IS NULL"),
    (frozenset({"NULL"}), "NULL"),
    (frozenset({"AND"}), "AND"),
    (frozenset({"OR"}), "OR"),
    (frozenset({"SIGN", "TIMES", "DIV", "POWER"}), "an operator (+ - * / % div ^)"),
    (frozenset({"NAME"}), "a name"),
    (frozenset({"TEXT"}), "a text"),
    (frozenset({"NUMBER"}), "a number"),
    (frozenset({"OPEN"}), "("),
    (frozenset({"CLOSE"}), ")"),
    (frozenset({"COMMA"}), ","),
    (frozenset({"$END"}), "the end"),
)


def parse_text(
    text: str, *, path: str = "filter", clock: Clock = NO_CLOCK, takes: Takes = "truth"
) -> Node:
    """Return the tree of a filter written as text, or of another expression: see `takes`.

    `path`: the field that contains the text. Raises InvalidFilter, and NotKept for a feature of an
    unsupported conformance class.
    """
    before = PATH.set(path)
    try:
        _refuse_unreadable(text)
        tree = resolve(_tree(text), clock)
        verify(tree, takes=takes)
    except Refusal as refused:
        raise error_of(refused, text) from None
    finally:
        PATH.reset(before)
    return tree


def _refuse_unreadable(text: str) -> None:
    everywhere = SourceRange(PATH.get())
    if not storable(text):
        raise Refusal("a filter holds neither NUL nor half a surrogate pair", everywhere)
    if len(text.encode()) > MOST_BYTES:
        raise Refusal(f"a filter has at most {MOST_BYTES:,} bytes", everywhere)
    if sum(1 for _ in _TOKEN.finditer(text)) > MOST_TOKENS:
        raise Refusal(f"a filter has at most {MOST_TOKENS:,} words and signs", everywhere)
    if not text or text.isspace():
        raise Refusal("the filter is empty: leave it out, or write a condition", everywhere)


def _tree(text: str) -> Node:
    try:
        tree: Node = parser().parse(text)  # type: ignore[assignment]  # Build transforms it to nodes
    except UnexpectedCharacters as wrong:
        raise _unexpected_character(text, wrong.pos_in_stream or 0) from None
    except UnexpectedToken as wrong:
        raise _unexpected_token(text, wrong) from None
    return tree


def _unexpected_character(text: str, offset: int) -> Refusal:
    at = SourceRange(PATH.get(), offset, offset + 1)
    quote = text[offset]
    if quote in "'\"":
        what = "text" if quote == "'" else "name"
        message = f"this {what} has no closing quote; a quote inside it is written twice"
        return Refusal(message, SourceRange(at.path, offset, len(text.rstrip())), (quote * 2,))
    slip = slip_at(text, offset)
    if slip is not None:
        return Refusal(slip[0], at, (slip[1],))
    return Refusal(f"{quote!r} means nothing here", at)


def _unexpected_token(text: str, wrong: UnexpectedToken) -> Refusal:
    token = wrong.token
    path = PATH.get()
    if token.type == "$END":
        end = len(text.rstrip())
        what = "filter" if "filter" in path else path
        return Refusal(
            f"the {what} ends too early: {_describe_expected(wrong)}",
            SourceRange(path, end, end + 1),
        )
    at = SourceRange(path, token.start_pos, token.end_pos)
    if text[: at.start].endswith("'") and token.type in {"NAME", "NUMBER", "TEXT"}:
        message = "the text before ends here; a quote inside a text is written twice"
        return Refusal(message, at, ("''",))
    slip = slip_at(text, token.start_pos or 0)
    if slip is not None:
        return Refusal(slip[0], at, (slip[1],))
    return Refusal(f"{_shorten_token(token)} is unexpected here: {_describe_expected(wrong)}", at)


def _describe_expected(wrong: UnexpectedToken) -> str:
    accepted = set(wrong.accepts or wrong.expected)
    if accepted >= _VALUES:
        return "expected a name, a number, a 'text' or another value"
    after_value = "COMPARISON" in accepted
    words = [
        word
        for kinds, word in _EXPECTED
        if kinds & accepted and not (after_value and kinds == {"OPEN"})
    ]
    words = words or sorted(kind.lower() for kind in accepted)
    return "expected " + ", ".join(words[:-1]) + (" or " if words[:-1] else "") + words[-1]


def _shorten_token(token: Token) -> str:
    text = str(token)
    return repr(text if len(text) <= 40 else text[:39] + "…")
