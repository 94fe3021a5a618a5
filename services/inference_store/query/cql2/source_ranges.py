"""Pointing at a place: line, column, and a caret under the text, for people."""

from collections.abc import Sequence
from typing import Final

from inference_store.inference.errors import Fault

from .tree import SourceRange

_SHOWN: Final = 76  # characters of a line that are shown around the place
_BEFORE: Final = 40


def fault(message: str, at: SourceRange, source: str | None, known: Sequence[str] = ()) -> Fault:
    """What is wrong at a place; with the text at hand, pointed at under the message."""
    if source is None or at.start is None:
        return Fault(at.path, message, tuple(known))
    shown = f"{where(at, source)}: {message}\n{pointed(at, source)}"
    line, column = _line_and_column(at.start, source)
    length = max(1, (at.end or at.start) - at.start)
    return Fault(at.path, shown, tuple(known), line, column, length)


def where(at: SourceRange, source: str | None) -> str:
    """`line 1, column 8`; of JSON the path."""
    if source is None or at.start is None:
        return at.path
    line, column = _line_and_column(at.start, source)
    return f"line {line}, column {column}"


def _line_and_column(offset: int, source: str) -> tuple[int, int]:
    return source.count("\n", 0, offset) + 1, offset - _line_start(offset, source) + 1


def pointed(at: SourceRange, source: str) -> str:
    """The line of a text, and under it carets at the place."""
    start = at.start or 0
    first = _line_start(start, source)
    last = source.find("\n", start)
    line = source[first : last if last >= 0 else len(source)]
    column = start - first
    cut = max(0, column - _BEFORE) if len(line) > _SHOWN else 0
    shown = line[cut : cut + _SHOWN]
    width = min((at.end or start) - start, len(shown) - (column - cut))
    return f"  {_one_wide(shown)}\n  {' ' * (column - cut)}{'^' * max(1, width)}"


def _line_start(offset: int, source: str) -> int:
    return source.rfind("\n", 0, offset) + 1


def _one_wide(line: str) -> str:
    """Every character takes one column: tabs and control characters become blanks."""
    return "".join(each if each.isprintable() else " " for each in line)
