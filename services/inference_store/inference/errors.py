"""Everything that can be wrong, in one tree below StoreError.

Each class carries its HTTP status, its problem type (its name, unless it says another) and a
sentence for the docs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in what was asked: where, what, and what would have been known.

    Of a filter in text also the place in it: line and column from 1, and how many characters.
    """

    path: str
    message: str
    known: Sequence[str] = field(default=())
    line: int | None = None
    column: int | None = None
    length: int | None = None


class StoreError(Exception):
    """Anything the store refuses or cannot do."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "internal-error"
    title: ClassVar[str] = "Something went wrong on our side"

    def __init_subclass__(
        cls, status: int | None = None, type: str | None = None, title: str | None = None
    ) -> None:
        cls.status = status or cls.status
        cls.type = type or re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()
        cls.title = title or cls.title

    def __init__(self, detail: str, *, faults: Sequence[Fault] = (), at: str | None = None) -> None:
        """`at`: the one field or header that all of `detail` is about, instead of `faults`."""
        super().__init__(detail)
        self.detail = detail
        self.faults = tuple(faults) if at is None else (Fault(at, detail),)

    @classmethod
    def of(cls, path: str, message: str, known: Sequence[str] = ()) -> Self:
        """Return the refusal of one thing in what was asked."""
        return cls(f"{path}: {message}.", faults=[Fault(path, message, known)])


class Invalid(StoreError, status=422, type="invalid-request", title="The request makes no sense"):
    """What was asked makes no sense; `errors` names the field and the remedy."""


class NoThumbnail(Invalid, title="No thumbnail can be made of this input"):
    """No thumbnail can be made of this input: the detail says why."""


class UnknownKey(
    Invalid, type="unknown-metadata-key", title="No inference of this model has this metadata key"
):
    """The model has never seen this metadata key; `known` lists the nearest names, of properties
    too if one could be meant."""


class ImpossibleComparison(Invalid, title="The comparison is impossible"):
    """Nothing can satisfy the comparison: the detail says why. `known` lists the types that the key
    has been seen with, or the values that there are."""


class InvalidFilter(Invalid, title="The filter cannot be read"):
    """The filter is not CQL2: `errors` points at the place and says what is expected there."""


class TooManyGroups(Invalid, title="The aggregate has too many groups"):
    """An aggregate has more groups, values or spans of time than it may: narrow what is asked."""


class InvalidCursor(Invalid, title="The cursor does not belong to this query"):
    """The cursor was made for another query, or is damaged: send the request without it."""


class Unauthorized(StoreError, status=401, title="An API key or token is required"):
    """No key or token was sent, or it does not work: send `Authorization: Bearer <key>`."""


class Forbidden(StoreError, status=403, title="A right is missing"):
    """The caller was not given the right that the detail names: ask an administrator for it."""


class ForeignRequest(Forbidden, title="The request is meant for another site, or comes from one"):
    """Another host is asked, or a page of another origin asks: the detail says what allows it."""


class RangeNotSatisfiable(StoreError, status=416, title="The requested range is not available"):
    """`Range` begins after the last byte; the size is in `Content-Range`."""

    def __init__(self, size: int) -> None:
        super().__init__(f"There are {size:,} bytes: request a range within them.")
        self.size = size


class TooManyRequests(StoreError, status=429, title="Too many requests"):
    """The key, subject or address asks more often than allowed: wait as `Retry-After` says."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class TooManyQueries(TooManyRequests, title="Too many queries run at once"):
    """As many queries or streams run as may at once: wait for yours, or as `Retry-After` says."""


class HeadersTooLarge(StoreError, status=431, title="The headers are too large"):
    """The request's line and headers are over the limit that the detail names."""


class MethodNotAllowed(StoreError, status=405, title="The path does not support this method"):
    """The path exists, and does not take this method: `Allow` names those it takes."""


class NotAcceptable(StoreError, status=406, title="The requested media type is not available"):
    """`Accept` names nothing that the route can answer with: `errors` lists what it can."""


class NotJson(StoreError, status=400, title="The body is not JSON"):
    """The body is not JSON; the detail says what is wrong and where."""


class NotFound(StoreError, status=404, title="Not found"):
    """There is nothing by this name; of models, the detail names the nearest that you may read."""


class Gone(StoreError, status=410, title="It has been deleted"):
    """It was here and has been deleted by policy or on request."""


class Conflict(StoreError, status=409, title="The current state does not allow this"):
    """Someone was faster, the name is not unique, or it is still in use; `errors` names the field,
    or the part of the path, and the remedy."""


class HeldByHold(Conflict, type="held", title="A legal hold keeps it"):
    """A legal hold keeps it as it is; the detail names it. Release or change the hold first."""


class HoldUnreadable(Conflict, title="A legal hold cannot be evaluated"):
    """A hold's filter cannot be evaluated, so nothing that it may keep is deleted: change it."""


class PreconditionFailed(StoreError, status=412, title="It has changed since you read it"):
    """`If-Match` names another revision than the present one, or `token` an older preview; `errors`
    names which: read again, then retry."""


def require_revision(what: str, present: int | str, expected: int | str | None) -> None:
    """Raise PreconditionFailed if `expected`, the revision of If-Match, is not the present one."""
    if expected not in (None, present):
        detail = f"{what} has revision {present}, not {expected}: read it again, and send its ETag."
        raise PreconditionFailed(detail, at="header.if-match")


class TooLarge(StoreError, status=413, title="The body is too large"):
    """The body is over the limit that the detail names."""


class UnsupportedMediaType(StoreError, status=415, title="The body's encoding is not read"):
    """`Content-Encoding` names what this route does not decode: send the body as it is."""


class NotKept(
    StoreError,
    status=501,
    type="conformance-class-not-kept",
    title="This part of CQL2 is not supported",
):
    """The filter needs a conformance class of CQL2 that is not kept; the detail names it."""


class QueryTimeout(StoreError, status=503, title="The query took too long"):
    """It took longer than allowed; the detail says what to narrow, or to send it again."""


class Busy(StoreError, status=503, title="The store is busy"):
    """Other requests took the time or every connection; yours was not done. Send it again after
    `Retry-After`: it need not be changed."""


class Unavailable(StoreError, status=503, title="A part of the store is unavailable"):
    """A part the answer needs (the detail says which) is away; try again shortly."""


class LedgerDiverged(
    Unavailable, type="ledger-apart", title="The ledger in the bucket and Postgres disagree"
):
    """Postgres is an older backup, or the bucket another one: the detail says what to run."""


class BlobMissing(Exception):
    """The object store has no object by this key (its bucket exists)."""


class BlobUnreadable(BlobMissing):
    """The object may well be there, and is not given: archived, or by a key that is refused."""


class BlobForbidden(Exception):
    """The object store refuses this one object, and gives others of its bucket."""


class BlobTooLarge(Exception):
    """The object is over the cap for its kind; it stays where it is and is not indexed."""


class ObjectStoreUnavailable(Exception):
    """The object store or the bucket cannot be reached: wait, lose nothing."""


class AccessDenied(ObjectStoreUnavailable):
    """The object store says 403: to this object or to all, which it does not tell apart."""


class InvalidEvent(Exception):
    """A Kafka message that can never be indexed: it becomes a dead letter.

    `reason` is one of `events.reasons.DEAD_LETTER_REASONS`; `detail` is for people.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        model_id: str | None = None,
        inference_id: str | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.model_id = model_id
        self.inference_id = inference_id


class SchemaBehind(Exception):
    """The database's schema is older than what this version needs. Ends a service at its start."""
