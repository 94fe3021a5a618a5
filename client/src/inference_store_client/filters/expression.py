"""Filters as Python: `(meta.frame_number > 9000) & ~field.ok`.

An expression is a value: building one asks the store nothing. Its tree is CQL2-JSON, so no text is
quoted anywhere. What Python would silently read as something else (`and`, `or`, `not`, `in`,
chained comparisons, `&` without parentheses) raises FilterError with the remedy.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn

from inference_store_client.errors import FilterError

from .nodes import Node, make_node, make_operation

_LOGIC: Final = (
    "an expression is neither true nor false before the store evaluates it: write (a) & (b) for"
    " `and`, (a) | (b) for `or`, ~(a) for `not`, .between(1, 5) for `1 <= a <= 5`, and"
    " .isin([…]) for `in`"
)
_PARENTHESES: Final = (
    "`&` and `|` bind closer than comparisons: put parentheses around each, as in"
    " (meta.a > 1) & (meta.b == 'x')"
)


class Expression(Node):
    """A part of a filter. Conditions and booleans combine with `&`, `|` and `~`."""

    __slots__ = ()

    def __and__(self, other: "Expression") -> "Condition":
        return _combine("and", self, other)

    def __or__(self, other: "Expression") -> "Condition":
        return _combine("or", self, other)

    def __invert__(self) -> "Condition":
        return Condition(make_operation("not", self))

    def __rand__(self, other: object) -> NoReturn:
        raise FilterError(_PARENTHESES)

    __ror__ = __rand__

    def __bool__(self) -> NoReturn:
        raise FilterError(_LOGIC)

    def __len__(self) -> NoReturn:
        raise FilterError("an expression has no length: ask the inferences, .count()")

    def __iter__(self) -> Iterator[Any]:
        raise FilterError("an expression cannot be iterated over: iterate over the inferences")

    def __contains__(self, item: object) -> NoReturn:
        raise FilterError("`in` asks Python, not the store: write .isin([…])")


class Condition(Expression):
    """What is true or false of an inference."""

    __slots__ = ()

    def _refuse(self, _: object) -> NoReturn:
        raise FilterError(
            f"a condition is not compared: write it alone, or ~ before it; {_PARENTHESES}"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Value(Expression):
    """A value of an inference: a name, a function, or a calculation."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: object) -> Condition:
        return self._compare("<", other)

    def __le__(self, other: object) -> Condition:
        return self._compare("<=", other)

    def __gt__(self, other: object) -> Condition:
        return self._compare(">", other)

    def __ge__(self, other: object) -> Condition:
        return self._compare(">=", other)

    def between(self, lower: object, upper: object) -> Condition:
        """Whether it lies between two values, or is one of them."""
        return Condition(make_operation("between", self, lower, upper))

    def like(self, pattern: "str | Value") -> Condition:
        """Whether a text matches: `%` is any text, `_` is one character, and `\\` takes the next
        character as it is."""
        return Condition(make_operation("like", self, pattern))

    def isin(self, values: Iterable[object]) -> Condition:
        """Whether it is one of the values."""
        if isinstance(values, str | bytes):
            raise FilterError(f"isin takes a list: isin([{values!r}])")
        return Condition(make_operation("in", self, list(values)))

    def is_null(self) -> Condition:
        """Whether there is no value."""
        return Condition(make_operation("isNull", self))

    def _compare(self, op: str, other: object) -> Condition:
        return Condition(make_operation(op, self, other))

    def __add__(self, other: object) -> "Value":
        return Value(make_operation("+", self, other))

    def __radd__(self, other: object) -> "Value":
        return Value(make_operation("+", other, self))

    def __sub__(self, other: object) -> "Value":
        return Value(make_operation("-", self, other))

    def __rsub__(self, other: object) -> "Value":
        return Value(make_operation("-", other, self))

    def __mul__(self, other: object) -> "Value":
        return Value(make_operation("*", self, other))

    def __rmul__(self, other: object) -> "Value":
        return Value(make_operation("*", other, self))

    def __truediv__(self, other: object) -> "Value":
        return Value(make_operation("/", self, other))

    def __rtruediv__(self, other: object) -> "Value":
        return Value(make_operation("/", other, self))

    def __mod__(self, other: object) -> "Value":
        return Value(make_operation("%", self, other))

    def __pow__(self, other: object) -> "Value":
        return Value(make_operation("^", self, other))

    def __neg__(self) -> "Value":
        return Value(make_operation("*", -1, self))


def _combine(op: str, left: Expression, right: object) -> Condition:
    if not isinstance(right, Expression):
        raise FilterError(_PARENTHESES)
    tree = left.tree
    first = tree["args"] if isinstance(tree, dict) and tree.get("op") == op else [tree]
    return Condition({"op": op, "args": [*first, make_node(right)]})
