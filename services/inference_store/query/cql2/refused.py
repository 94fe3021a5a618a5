"""One refusal inside this folder; at its edge it becomes an error of the store with a place."""

from collections.abc import Sequence

from inference_store.inference.errors import InvalidFilter, NotKept

from .conformance import CONFORMANCE
from .source_ranges import fault, where
from .tree import SourceRange


class Refused(Exception):
    """What cannot be taken, where, and what would be. `conformance`: the class not kept."""

    def __init__(
        self,
        message: str,
        at: SourceRange,
        known: Sequence[str] = (),
        *,
        conformance: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.known = tuple(known)
        self.conformance = conformance


def error_of(refused: Refused, source: str | None) -> InvalidFilter | NotKept:
    """The error to raise; `source` is the filter's text, if it was one."""
    faults = [fault(refused.message, refused.at, source, refused.known)]
    if refused.conformance is None:
        detail = f"{where(refused.at, source)}: {refused.message}"
        what = "filter" if "filter" in refused.at.path else refused.at.path
        return InvalidFilter(f"The {what} cannot be read, {detail}.", faults=faults)
    kept = CONFORMANCE[refused.conformance]
    detail = f"{refused.message}; it belongs to the conformance class {kept.title} ({kept.uri})"
    return NotKept(f"{detail}, which is not kept here.", faults=faults)
