"""Dead letters and the books."""

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from inference_store.api import cursors
from inference_store.api.answer import Answer, named, text
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.problems import refusals
from inference_store.api.requests import ExactRoute
from inference_store.api.schemas.dead_letters import (
    Accounting,
    Chosen,
    DeadLetterPage,
    DeadLetterParameters,
    Discard,
    OneDeadLetter,
    Redriven,
)
from inference_store.store import books, dead_letters
from inference_store.store.dead_letters import DeadLetter

router = APIRouter(route_class=ExactRoute, tags=["dead letters and books"])
LetterId = Annotated[int, Path(ge=1, le=2**63 - 1)]


@router.get(
    "/dead-letters",
    response_model=DeadLetterPage,
    responses=refusals(),
    summary="List dead letters",
)
async def list_dead_letters(
    page: Annotated[DeadLetterParameters, Query()], connection: Reading
) -> Answer:
    """Events that could not be indexed, the newest first."""
    after = cursors.decode(page.cursor, int)
    found = await dead_letters.find(
        connection, page.selection(), limit=page.limit + 1, before=after[0] if after else None
    )
    items = found[: page.limit]
    following = cursors.encode(items[-1].id) if len(found) > page.limit else None
    return Answer({"items": [_shown(each) for each in items], "next": following})


@router.get(
    "/dead-letters/{id}",
    response_model=OneDeadLetter,
    responses=refusals(404),
    summary="Read a dead letter",
)
async def get_dead_letter(id: LetterId, connection: Reading) -> Answer:
    """One dead letter with its payload."""
    return Answer(_whole(await dead_letters.get(connection, id)))


@router.post(
    "/dead-letters/redrive",
    status_code=202,
    response_model=Redriven,
    responses=refusals(400, 413),
    summary="Redrive dead letters",
)
async def redrive_dead_letters(body: Chosen, connection: Writing) -> Answer:
    """Ask the ingesters to try every open one that is chosen again."""
    redriven = await dead_letters.redrive(connection, body.selection())
    return Answer({"redriven": redriven}, status_code=202)


@router.post(
    "/dead-letters/{id}/redrive",
    status_code=202,
    response_model=OneDeadLetter,
    responses=refusals(404, 409),
    summary="Redrive a dead letter",
)
async def redrive_dead_letter(id: LetterId, connection: Writing) -> Answer:
    """Ask the ingesters to try it again."""
    return Answer(_whole(await dead_letters.redrive_one(connection, id)), status_code=202)


@router.post(
    "/dead-letters/{id}/discard",
    response_model=OneDeadLetter,
    responses=refusals(400, 404, 409, 413),
    summary="Discard a dead letter",
)
async def discard_dead_letter(id: LetterId, body: Discard, connection: Writing) -> Answer:
    """Decide that it will never be indexed; it stays listed, with the reason."""
    return Answer(_whole(await dead_letters.discard(connection, id, body.reason)))


@router.get(
    "/accounting", response_model=Accounting, responses=refusals(), summary="Read the books"
)
async def get_accounting(connection: Reading) -> Answer:
    """What became of every offset of every Kafka partition."""
    accounts = await books.accounts(connection)
    producers = await books.producers(connection)
    return Answer(
        {
            "closes": all(account.closes for account in accounts),
            "partitions": [_account(account) for account in accounts],
            "producers": [named(each) | {"missing": each.missing} for each in producers],
        }
    )


def _account(account: books.Account) -> dict[str, Any]:
    return {
        **account.place.values,
        **named(account, "place", "counts", "lost"),
        **{outcome.value: number for outcome, number in account.counts.items()},
        "closes": account.closes,
        "lost_offsets": [{"lo": lo, "hi": hi} for lo, hi in account.lost],
    }


def _shown(letter: DeadLetter) -> dict[str, Any]:
    record = letter.record
    return {
        **record.place.values,
        **named(letter, "record", "trouble"),
        **letter.trouble.values,
        "offset": record.offset,
        "record_time": record.time,
    }


def _whole(letter: DeadLetter) -> dict[str, Any]:
    record = letter.record
    return {
        **_shown(letter),
        "payload": _text(record.payload),
        "payload_base64": _base64(record.payload) or "",
        "key_base64": _base64(record.key),
        "headers": [[text(name), text(value)] for name, value in record.headers],
    }


def _text(payload: bytes | None) -> str | None:
    try:
        return None if payload is None else payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()
