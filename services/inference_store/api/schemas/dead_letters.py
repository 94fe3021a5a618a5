"""Dead letters."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from inference_store.api.shown import AnyText, Shown
from inference_store.index.accounting import PartitionId
from inference_store.index.unsettled import Selection

from .fields import Body, Instant, ShortText, Text
from .links import PageParameters

State = Literal[
    "open", "redrive", "discarded", "stored", "duplicate", "expired", "erased_again", "parked"
]


class Chosen(Body):
    """Which dead letters or parked events; what is left out does not narrow."""

    reason: ShortText | None = None
    """The code of the reason."""
    model_id: ShortText | None = None
    created_from: Instant | None = None
    created_to: Instant | None = None

    def selection(self) -> Selection:
        """Return it as the store takes it."""
        return Selection(
            reason=self.reason,
            model_id=self.model_id,
            created_from=self.created_from,
            created_to=self.created_to,
        )


class ParkedParameters(PageParameters):
    """Which page of which parked events."""

    reason: ShortText | None = None
    model_id: ShortText | None = None

    def selection(self) -> Selection:
        """Return it as the store takes it."""
        return Selection(reason=self.reason, model_id=self.model_id)


class DeadLetterParameters(ParkedParameters):
    """Which page of which dead letters."""

    state: State | None = None

    def selection(self) -> Selection:
        """Return it as the store takes it."""
        return replace(super().selection(), state=self.state)


class Discard(Body):
    """Why an event will never be indexed."""

    reason: Annotated[Text, Field(min_length=1, max_length=2000, examples=["a test message"])]


class ShownPlace(Shown, of=PartitionId):
    """A partition of a topic; a topic made anew is a new epoch."""


class ShownDeadLetter(ShownPlace):
    """An event that could not be indexed."""

    id: int
    offset: int
    record_time: datetime
    reason: str
    detail: str
    model_id: str | None
    inference_id: str | None
    state: State
    attempts: int
    discard_reason: str | None
    created_at: datetime
    updated_at: datetime


class OneDeadLetter(ShownDeadLetter):
    """A dead letter with its bytes, as far as the caller may read inputs."""

    payload: str | None
    """The message as text; null where it is no UTF-8."""
    payload_base64: str | None
    key_base64: str | None
    headers: list[list[AnyText]]


class DeadLetterPage(Shown):
    """Dead letters, the newest first."""

    items: list[ShownDeadLetter]
    next: str | None


class Redriven(Shown):
    """How many dead letters the ingesters were asked to try again."""

    redriven: int


class ShownParkedEvent(ShownPlace):
    """An event that waits for an object."""

    id: int
    offset: int
    record_time: datetime
    reason: str
    detail: str
    model_id: str | None
    inference_id: str | None
    missing: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime


class ParkedEventPage(Shown):
    """Parked events, the newest first."""

    items: list[ShownParkedEvent]
    next: str | None


class Retried(Shown):
    """How many parked events are due now."""

    retried: int
