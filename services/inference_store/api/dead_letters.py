"""Dead letters and parked events."""

import base64
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

from fastapi import Path
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.index import registrations, unsettled
from inference_store.index.registrations import Registration
from inference_store.index.unsettled import Kind, Selection, UnsettledEvent
from inference_store.inference.field_docs import Body, Instant, ShortText, Text

from .access import Access, Asking, Needs, Over
from .answer import Answer, AnyText, Shown
from .dependencies import Reading, Writing
from .fields import InQuery, PageAnswer, PageParameters, ShownItem
from .routing import Router

State = Literal[
    "open", "redrive", "discarded", "stored", "duplicate", "expired", "erased_again", "parked"
]


class EventSelection(Body):
    """Which dead letters or parked events. Each field that is given must match."""

    reason: ShortText | None = None
    """The code of the reason."""
    model_id: ShortText | None = None
    created_from: Instant | None = None
    created_to: Instant | None = None


class ParkedParameters(PageParameters):
    """Which page of which parked events."""

    reason: ShortText | None = None
    model_id: ShortText | None = None


class DeadLetterParameters(ParkedParameters):
    """Which page of which dead letters."""

    state: State | None = None


class Discard(Body):
    """Why an event will never be indexed."""

    reason: Annotated[Text, Field(min_length=1, max_length=2000, examples=["a test message"])]


class ShownPlace(Shown):
    """A partition of a topic. A topic that is created again starts a new epoch."""

    cluster: str
    topic: str
    epoch: int
    partition: int


class ShownUnsettled(ShownPlace):
    """An event that is not stored."""

    id: int
    offset: int
    record_time: datetime
    reason: str
    detail: str
    model_id: str | None
    inference_id: str | None


class ShownDeadLetter(ShownUnsettled):
    """An event that could not be indexed."""

    state: State
    attempts: int
    discard_reason: str | None
    created_at: datetime
    updated_at: datetime


class DeadLetterDetail(ShownDeadLetter):
    """A dead letter, with its bytes if the caller may read inputs."""

    payload: str | None
    """The message as text; null if it is not UTF-8."""
    payload_base64: str | None
    key_base64: str | None
    headers: list[list[AnyText]]


class Redriven(Shown):
    """How many dead letters the ingesters were asked to try again."""

    redriven: int


class ShownParkedEvent(ShownUnsettled):
    """An event that waits for an object."""

    missing: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime


class Retried(Shown):
    """How many parked events are due now."""

    retried: int


router = Router("dead letters and books")
_NEEDED = Needs(Right.ADMIN, Over.SOME)
EventId = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.add("GET /dead-letters", _NEEDED, "List dead letters")
async def list_dead_letters(
    page: InQuery[DeadLetterParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownDeadLetter]:
    """Events that could not be indexed, the newest first. Those of no known model are listed only
    for callers with `admin` over everything."""
    return await _answer_page(connection, access, page, "dead letter", ShownDeadLetter)


@router.add("GET /dead-letters/{id}", _NEEDED, "Read a dead letter")
async def get_dead_letter(
    id: EventId, connection: Reading, access: Asking
) -> Answer[DeadLetterDetail]:
    """One dead letter, with its bytes where the caller may read inputs."""
    letter = await unsettled.get(connection, id, "dead letter", within=access.scope)
    return Answer(await _show_whole(connection, access, letter))


@router.add("POST /dead-letters/redrive", _NEEDED, "Redrive dead letters", status=202)
async def redrive_dead_letters(
    body: EventSelection, connection: Writing, access: Asking
) -> Answer[Redriven]:
    """Ask the ingesters to try every open dead letter of the selection again."""
    redriven = await unsettled.retry(connection, _select(access, "dead letter", body))
    selection = body.model_dump(mode="json", exclude_none=True)
    await access.note(connection, Action.DEAD_LETTERS_REDRIVEN, redriven=redriven, chosen=selection)
    return Answer(Redriven(redriven=redriven), status_code=202)


@router.add("POST /dead-letters/{id}/redrive", _NEEDED, "Redrive a dead letter", 409, status=202)
async def redrive_dead_letter(
    id: EventId, connection: Writing, access: Asking
) -> Answer[DeadLetterDetail]:
    """Ask the ingesters to try it again."""
    letter = await _settle(connection, access, "dead letter", id)
    return Answer(await _show_whole(connection, access, letter), status_code=202)


@router.add("POST /dead-letters/{id}/discard", _NEEDED, "Discard a dead letter", 409)
async def discard_dead_letter(
    id: EventId, body: Discard, connection: Writing, access: Asking
) -> Answer[DeadLetterDetail]:
    """Decide that it will never be indexed; it stays listed, with the reason."""
    letter = await _settle(connection, access, "dead letter", id, body.reason)
    return Answer(await _show_whole(connection, access, letter))


@router.add("GET /parked-events", _NEEDED, "List parked events")
async def list_parked_events(
    page: InQuery[ParkedParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownParkedEvent]:
    """Events that wait for an object, the newest first, each with the key that is `missing`."""
    return await _answer_page(connection, access, page, "parked event", ShownParkedEvent)


@router.add("POST /parked-events/retry", _NEEDED, "Retry parked events", status=202)
async def retry_parked_events(
    body: EventSelection, connection: Writing, access: Asking
) -> Answer[Retried]:
    """Let the ingesters try the selected events now, and not at their next attempt."""
    retried = await unsettled.retry(connection, _select(access, "parked event", body))
    selection = body.model_dump(mode="json", exclude_none=True)
    await access.note(connection, Action.PARKED_RETRIED, retried=retried, chosen=selection)
    return Answer(Retried(retried=retried), status_code=202)


@router.add("POST /parked-events/{event_id}/retry", _NEEDED, "Retry a parked event", status=202)
async def retry_parked_event(
    event_id: EventId, connection: Writing, access: Asking
) -> Answer[ShownParkedEvent]:
    """Let the ingesters try it now."""
    event = await _settle(connection, access, "parked event", event_id)
    return Answer(ShownParkedEvent.show(event, **_read_record(event)), status_code=202)


@router.add("POST /parked-events/{event_id}/discard", _NEEDED, "Discard a parked event")
async def discard_parked_event(
    event_id: EventId, body: Discard, connection: Writing, access: Asking
) -> Answer[ShownDeadLetter]:
    """Decide that it will never be indexed: it becomes a discarded dead letter."""
    letter = await _settle(connection, access, "parked event", event_id, body.reason)
    return Answer(ShownDeadLetter.show(letter, **_read_record(letter)))


_ACTIONS: Final = {
    "dead letter": (Action.DEAD_LETTER_REDRIVEN, Action.DEAD_LETTER_DISCARDED),
    "parked event": (Action.PARKED_RETRIED, Action.PARKED_DISCARDED),
}


async def _settle(
    connection: AsyncConnection, access: Access, kind: Kind, id: int, reason: str | None = None
) -> UnsettledEvent:
    """Let the ingesters try an event again or, for a reason, discard it."""
    await unsettled.get(connection, id, kind, within=access.scope)
    detail: dict[str, Any] = {kind.replace(" ", "_"): id}
    if reason is None:
        event = await unsettled.retry_one(connection, id, kind)
        detail |= {"retried": 1} if kind == "parked event" else {}
    else:
        event = await unsettled.discard(connection, id, kind, reason)
        detail |= {"reason": reason, "dead_letter": event.id}
    action = _ACTIONS[kind][reason is not None]
    await access.note(connection, action, await _find_model(connection, event), **detail)
    return event


async def _answer_page(
    connection: AsyncConnection,
    access: Access,
    page: ParkedParameters,
    kind: Kind,
    shown: type[ShownItem],
) -> PageAnswer[ShownItem]:
    before, chosen = page.find_after(int), _select(access, kind, page)
    events = await unsettled.find(connection, chosen, limit=page.limit + 1, before=before)
    return page.answer(
        events, lambda event: shown.show(event, **_read_record(event)), attrgetter("id")
    )


def _select(access: Access, kind: Kind, given: EventSelection | ParkedParameters) -> Selection:
    chosen = given.model_dump(exclude={"limit", "cursor"})
    return Selection(kind=kind, within=access.scope, **chosen)


def _read_record(event: UnsettledEvent) -> dict[str, Any]:
    record = event.record
    position = {"offset": record.offset, "record_time": record.time}
    return {**record.partition_id.values, **event.rejection.values, **position}


async def _show_whole(
    connection: AsyncConnection, access: Access, letter: UnsettledEvent
) -> DeadLetterDetail:
    """Return a dead letter; its bytes are an input, and withheld from callers who may not read
    inputs."""
    record, model = letter.record, await _find_model(connection, letter)
    scope = access.caller.scope(Right.READ_INPUTS)
    may_read_inputs = (
        scope.is_everything if model is None else access.has_right(Right.READ_INPUTS, model)
    )
    if may_read_inputs:
        access.note_read(Action.DEAD_LETTER_READ, model, dead_letter=letter.id)
    return DeadLetterDetail.show(
        letter,
        **_read_record(letter),
        payload=_decode_text(record.payload) if may_read_inputs else None,
        payload_base64=_encode_base64(record.payload) if may_read_inputs else None,
        key_base64=_encode_base64(record.key) if may_read_inputs else None,
        headers=record.headers if may_read_inputs else [],
    )


async def _find_model(connection: AsyncConnection, event: UnsettledEvent) -> Registration | None:
    model_id = event.rejection.model_id
    by_id = await registrations.find_by_ids(connection, [] if model_id is None else [model_id])
    return by_id.get(model_id or "")


def _decode_text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _encode_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
