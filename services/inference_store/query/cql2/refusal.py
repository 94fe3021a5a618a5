"""The refusal inside this folder; at its edge it becomes an error of the store with a place."""

from collections.abc import Sequence

from inference_store.inference.errors import InvalidFilter, NotKept

from .conformance import CONFORMANCE
from .source_ranges import fault, where
from .tree import SourceRange


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
