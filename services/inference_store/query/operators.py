"""The comparison operators: one table. Validation, SQL, documentation and tests read it.

A metadata name may have several values (`tags[]`). `some`: the comparison holds if some value
satisfies it; `none`: if there is a comparable value, and none satisfies it. A missing name has no
value, so both are false for it, as with SQL's NULL.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from inference_store.inference.metadata.values import Family

Holds: TypeAlias = Literal["some", "none", "sent", "not_sent"]
_ALL: Final[frozenset[Family]] = frozenset({"number", "string", "bool", "timestamp"})
_ORDERED: Final[frozenset[Family]] = frozenset({"number", "string", "timestamp"})
_TEXT: Final[frozenset[Family]] = frozenset({"string"})


class Takes(StrEnum):
    """The type of an operator's `value`."""

    ONE = "one value"
    LIST = "a list of values"
    PAIR = "a list of two values, the lower and the upper"
    NONE = "nothing"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator."""

    name: str
    aliases: tuple[str, ...]
    meaning: str
    takes: Takes
    holds_for: Holds
    families: frozenset[Family]


def like_expression(pattern: str) -> re.Pattern[str]:
    r"""Return LIKE as a regular expression: `%` any text, `_` one character, `\` escapes the next.

    Raises ValueError if the pattern ends in a single backslash.
    """
    first, *others = _like_pieces(pattern)
    if not others:
        return re.compile(first, re.DOTALL)
    *between, last = others
    # A piece between two `%` matches at its first occurrence, and is never tried again, because a
    # look-ahead does not backtrack: many `%` take no longer than a few.
    middle = "".join(f"(?=(?P<to{at}>.*?{piece}))(?P=to{at})" for at, piece in enumerate(between))
    return re.compile(f"{first}{middle}.*{last}", re.DOTALL)


def _like_pieces(pattern: str) -> list[str]:
    pieces = [""]
    for token in _like_tokens(pattern):
        if token == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if token == "_" else re.escape(token[-1])
    return pieces


def _like_tokens(pattern: str) -> list[str]:
    tokens = re.findall(r"\\.|[^\\]|\\\Z", pattern, re.DOTALL)
    if tokens and tokens[-1] == "\\":
        raise ValueError(
            "a LIKE pattern cannot end in a backslash; write two for one, in a text of CQL2 four"
        )
    return tokens


def like_prefix(pattern: str) -> tuple[str, bool]:
    """Return the text that every match begins with, and whether every text with it matches."""
    tokens = _like_tokens(pattern)
    plain = list(takewhile(lambda token: token not in {"%", "_"}, tokens))
    rest = tokens[len(plain) :]
    return "".join(token[-1] for token in plain), bool(rest) and set(rest) == {"%"}


def _make_table(*entries: Operator) -> Mapping[str, Operator]:
    return MappingProxyType({entry.name: entry for entry in entries})


# fmt: off
OPERATORS: Final = _make_table(
    Operator("eq", ("EQUAL", "EQUALS", "="), "some value is equal",
             Takes.ONE, "some", _ALL),
    Operator("neq", ("NOT_EQUAL", "NOT_EQUALS", "<>", "!="),
             "some value is different; a name that is missing does not match",
             Takes.ONE, "some", _ALL),
    Operator("gt", ("GREATER_THAN", ">"), "some value is greater",
             Takes.ONE, "some", _ORDERED),
    Operator("gte", ("GREATER_THAN_OR_EQUAL", "GREATER_THAN_OR_EQUAL_TO", ">="),
             "some value is greater or equal",
             Takes.ONE, "some", _ORDERED),
    Operator("lt", ("LESS_THAN", "<"), "some value is less",
             Takes.ONE, "some", _ORDERED),
    Operator("lte", ("LESS_THAN_OR_EQUAL", "LESS_THAN_OR_EQUAL_TO", "<="),
             "some value is less or equal",
             Takes.ONE, "some", _ORDERED),
    Operator("in", ("IN",), "some value is one of the list",
             Takes.LIST, "some", _ALL),
    Operator("not_in", ("NOT_IN",),
             "there is a value, and none is one of the list; a name that is missing does not match",
             Takes.LIST, "none", _ALL),
    Operator("between", ("BETWEEN",), "some value lies between the two, or is one of them",
             Takes.PAIR, "some", _ORDERED),
    Operator("like", ("LIKE",),
             "some text matches: `%` is any text, `_` one character, `\\` takes the next as it is",
             Takes.ONE, "some", _TEXT),
    Operator("exists", ("EXISTS", "IS_NOT_NULL"),
             "the key was sent, whatever its value; JSON null counts",
             Takes.NONE, "sent", _ALL),
    Operator("missing", ("MISSING", "NOT_EXISTS", "IS_NULL", "DOES_NOT_EXIST"),
             "the key was not sent",
             Takes.NONE, "not_sent", _ALL),
)
# fmt: on

_NAMED: Final[Mapping[str, Operator]] = MappingProxyType(
    {name.lower(): entry for entry in OPERATORS.values() for name in (entry.name, *entry.aliases)}
)


def find_operator(name: str) -> Operator | None:
    """Return the operator of a name or an alias, in upper or lower case."""
    return _NAMED.get(name.strip().lower())
