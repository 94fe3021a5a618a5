"""Dead letters and parked events."""

import base64
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Query
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.dead_letters import (
    Chosen,
    DeadLetterPage,
    DeadLetterParameters,
    Discard,
    OneDeadLetter,
    ParkedEventPage,
    ParkedParameters,
    Redriven,
    Retried,
    ShownDeadLetter,
    ShownParkedEvent,
)
from inference_store.index import registrations, unsettled
from inference_store.index.registrations import Registration
from inference_store.index.unsettled import UnsettledEvent

router = make_router("dead letters and books")
LetterId = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get(
    "/dead-letters",
    response_model=DeadLetterPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="List dead letters",
)
async def list_dead_letters(
    page: Annotated[DeadLetterParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Events that could not be indexed, the newest first; those of no known model only where
    everything is administered."""
    before = cursors.decode_one(page.cursor, int)
    chosen = replace(page.selection(), kind="dead letter", within=access.scope)
    letters = await unsettled.find(connection, chosen, limit=page.limit + 1, before=before)
    items, following = cursors.cut_page(letters, page.limit, lambda letter: letter.id)
    shown = [ShownDeadLetter.show(letter, **_read_record(letter)) for letter in items]
    return Answer(DeadLetterPage(items=shown, next=following))


@router.get(
    "/dead-letters/{id}",
    response_model=OneDeadLetter,
    responses=document_refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Read a dead letter",
)
async def get_dead_letter(id: LetterId, connection: Reading, access: Asking) -> Answer:
    """One dead letter, with its bytes where the caller may read inputs."""
    letter = await unsettled.get(connection, id, "dead letter", within=access.scope)
    return Answer(await _show_whole(connection, access, letter))


@router.post(
    "/dead-letters/redrive",
    status_code=202,
    response_model=Redriven,
    responses=document_refusals(400, 413),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Redrive dead letters",
)
async def redrive_dead_letters(body: Chosen, connection: Writing, access: Asking) -> Answer:
    """Ask the ingesters to try every open one that is chosen again."""
    chosen = replace(body.selection(), kind="dead letter", within=access.scope)
    redriven = await unsettled.retry(connection, chosen)
    selection = body.model_dump(mode="json", exclude_none=True)
    await access.note(connection, Action.DEAD_LETTERS_REDRIVEN, redriven=redriven, chosen=selection)
    return Answer(Redriven(redriven=redriven), status_code=202)


@router.post(
    "/dead-letters/{id}/redrive",
    status_code=202,
    response_model=OneDeadLetter,
    responses=document_refusals(404, 409),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Redrive a dead letter",
)
async def redrive_dead_letter(id: LetterId, connection: Writing, access: Asking) -> Answer:
    """Ask the ingesters to try it again."""
    await unsettled.get(connection, id, "dead letter", within=access.scope)
    letter = await unsettled.retry_one(connection, id, "dead letter")
    model = await _find_model(connection, letter)
    await access.note(connection, Action.DEAD_LETTER_REDRIVEN, model, dead_letter=id)
    return Answer(await _show_whole(connection, access, letter), status_code=202)


@router.post(
    "/dead-letters/{id}/discard",
    response_model=OneDeadLetter,
    responses=document_refusals(400, 404, 409, 413),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Discard a dead letter",
)
async def discard_dead_letter(
    id: LetterId, body: Discard, connection: Writing, access: Asking
) -> Answer:
    """Decide that it will never be indexed; it stays listed, with the reason."""
    await unsettled.get(connection, id, "dead letter", within=access.scope)
    letter = await unsettled.discard(connection, id, "dead letter", body.reason)
    model = await _find_model(connection, letter)
    noted: dict[str, Any] = {"dead_letter": id, "reason": body.reason}
    await access.note(connection, Action.DEAD_LETTER_DISCARDED, model, **noted)
    return Answer(await _show_whole(connection, access, letter))


@router.get(
    "/parked-events",
    response_model=ParkedEventPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="List parked events",
)
async def list_parked_events(
    page: Annotated[ParkedParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Events that wait for an object, the newest first, each with the key that is `missing`."""
    before = cursors.decode_one(page.cursor, int)
    chosen = replace(page.selection(), kind="parked event", within=access.scope)
    events = await unsettled.find(connection, chosen, limit=page.limit + 1, before=before)
    items, following = cursors.cut_page(events, page.limit, lambda event: event.id)
    shown = [ShownParkedEvent.show(event, **_read_record(event)) for event in items]
    return Answer(ParkedEventPage(items=shown, next=following))


@router.post(
    "/parked-events/retry",
    status_code=202,
    response_model=Retried,
    responses=document_refusals(400, 413),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Retry parked events",
)
async def retry_parked_events(body: Chosen, connection: Writing, access: Asking) -> Answer:
    """Let the ingesters try every one that is chosen now, and not when its turn comes."""
    chosen = replace(body.selection(), kind="parked event", within=access.scope)
    retried = await unsettled.retry(connection, chosen)
    selection = body.model_dump(mode="json", exclude_none=True)
    await access.note(connection, Action.PARKED_RETRIED, retried=retried, chosen=selection)
    return Answer(Retried(retried=retried), status_code=202)


@router.post(
    "/parked-events/{event_id}/retry",
    status_code=202,
    response_model=ShownParkedEvent,
    responses=document_refusals(404),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Retry a parked event",
)
async def retry_parked_event(event_id: LetterId, connection: Writing, access: Asking) -> Answer:
    """Let the ingesters try it now."""
    await unsettled.get(connection, event_id, "parked event", within=access.scope)
    event = await unsettled.retry_one(connection, event_id, "parked event")
    model = await _find_model(connection, event)
    await access.note(connection, Action.PARKED_RETRIED, model, parked_event=event_id, retried=1)
    return Answer(ShownParkedEvent.show(event, **_read_record(event)), status_code=202)


@router.post(
    "/parked-events/{event_id}/discard",
    response_model=ShownDeadLetter,
    responses=document_refusals(400, 404, 413),
    openapi_extra=needs(Right.ADMIN, Over.SOME),
    summary="Discard a parked event",
)
async def discard_parked_event(
    event_id: LetterId, body: Discard, connection: Writing, access: Asking
) -> Answer:
    """Decide that it will never be indexed: it becomes a discarded dead letter."""
    await unsettled.get(connection, event_id, "parked event", within=access.scope)
    letter = await unsettled.discard(connection, event_id, "parked event", body.reason)
    model = await _find_model(connection, letter)
    noted: dict[str, Any] = {"dead_letter": letter.id, "reason": body.reason}
    await access.note(connection, Action.PARKED_DISCARDED, model, parked_event=event_id, **noted)
    return Answer(ShownDeadLetter.show(letter, **_read_record(letter)))


def _read_record(event: UnsettledEvent) -> dict[str, Any]:
    """Return the fields of its record, without the bytes."""
    record = event.record
    position = {"offset": record.offset, "record_time": record.time}
    return {**record.partition_id.values, **event.rejection.values, **position}


async def _show_whole(
    connection: AsyncConnection, access: Access, letter: UnsettledEvent
) -> OneDeadLetter:
    """Return a dead letter; its bytes are an input, and withheld from callers who may not read
    inputs."""
    record, model = letter.record, await _find_model(connection, letter)
    scope = access.caller.scope(Right.READ_INPUTS)
    may_read_inputs = (
        scope.is_everything if model is None else access.has_right(Right.READ_INPUTS, model)
    )
    if may_read_inputs:
        access.note_read(Action.DEAD_LETTER_READ, model, dead_letter=letter.id)
    return OneDeadLetter.show(
        letter,
        **_read_record(letter),
        payload=_decode_text(record.payload) if may_read_inputs else None,
        payload_base64=(_encode_base64(record.payload) or "") if may_read_inputs else None,
        key_base64=_encode_base64(record.key) if may_read_inputs else None,
        headers=record.headers if may_read_inputs else [],
    )


async def _find_model(connection: AsyncConnection, event: UnsettledEvent) -> Registration | None:
    """Return the model that the event names, if there is one."""
    model_id = event.rejection.model_id
    by_id = await registrations.find_by_ids(connection, [] if model_id is None else [model_id])
    return by_id.get(model_id or "")


def _decode_text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _encode_base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
