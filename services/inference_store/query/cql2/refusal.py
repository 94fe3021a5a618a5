"""A refused part of a filter, and the error that shows its place: line, column, carets."""

from collections.abc import Sequence
from typing import Final

from inference_store.inference.errors import Fault, InvalidFilter, NotKept

from .operations import CONFORMANCE
from .tree import SourceRange

_SHOWN: Final = 76  # characters of a line that are shown around the place
_BEFORE: Final = 40


def fault(
    message: str, at: SourceRange, source: str | None, suggestions: Sequence[str] = ()
) -> Fault:
    """Describe an error at a place; if the text is known, carets under it point at the place."""
    if source is None or at.start is None:
        return Fault(at.path, message, tuple(suggestions))
    described = f"{where(at, source)}: {message}\n{pointed(at, source)}"
    line, column = _line_and_column(at.start, source)
    length = max(1, (at.end or at.start) - at.start)
    return Fault(at.path, described, tuple(suggestions), line, column, length)


def where(at: SourceRange, source: str | None) -> str:
    """Return the place for people: `line 1, column 8`, or the path in JSON."""
    if source is None or at.start is None:
        return at.path
    line, column = _line_and_column(at.start, source)
    return f"line {line}, column {column}"


def _line_and_column(offset: int, source: str) -> tuple[int, int]:
    return source.count("\n", 0, offset) + 1, offset - _line_start(offset, source) + 1


def pointed(at: SourceRange, source: str) -> str:
    """Return the line of a text, and under it carets at the place."""
    start = at.start or 0
    first = _line_start(start, source)
    last = source.find("\n", start)
    line = source[first : last if last >= 0 else len(source)]
    column = start - first
    cut = max(0, column - _BEFORE) if len(line) > _SHOWN else 0
    excerpt = line[cut : cut + _SHOWN]
    width = min((at.end or start) - start, len(excerpt) - (column - cut))
    return f"  {_one_wide(excerpt)}\n  {' ' * (column - cut)}{'^' * max(1, width)}"


def _line_start(offset: int, source: str) -> int:
    return source.rfind("\n", 0, offset) + 1


def _one_wide(line: str) -> str:
    """Make every character one column wide: tabs and control characters become blanks."""
    return "".join(character if character.isprintable() else " " for character in line)


class Refusal(Exception):
    """A refused part: the message, the place, and suggestions.

    `conformance`: the unsupported class.
    """

    def __init__(
        self,
        message: str,
        at: SourceRange,
        suggestions: Sequence[str] = (),
        *,
        conformance: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.suggestions = tuple(suggestions)
        self.conformance = conformance


def error_of(refused: Refusal, source: str | None) -> InvalidFilter | NotKept:
    """Return the error to raise; `source`: the text of the filter, if it was sent as text."""
    faults = [fault(refused.message, refused.at, source, refused.suggestions)]
    if refused.conformance is None:
        detail = f"{where(refused.at, source)}: {refused.message}"
        what = "filter" if "filter" in refused.at.path else refused.at.path
        return InvalidFilter(f"The {what} cannot be read, {detail}.", faults=faults)
    missing_class = CONFORMANCE[refused.conformance]
    detail = (
        f"{refused.message}; it belongs to the conformance class {missing_class.title}"
        f" ({missing_class.uri})"
    )
    return NotKept(f"{detail}, which is not kept here.", faults=faults)
