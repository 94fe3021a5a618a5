"""Dry runs of erasures as the api answers them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.datastructures import State

from inference_store.erasure.erasures import foretelling
from inference_store.erasure.erasures.foretold_asides import AskedOfModel
from inference_store.erasure.erasures.foretold_uids import Going, Listed, list_uids
from inference_store.inference.errors import InvalidCursor
from inference_store.query.bounded import Deadline

from . import cursors
from .schemas.erasures import ErasureRequest

# A model is named where any of these says something.
_SAYING = (
    "inferences",
    "dead_letters",
    "parked_events",
    "held",
    "undecided",
    "partial",
)


async def foretold(
    state: State,
    connection: AsyncConnection,
    models: Mapping[int, str],
    asked: Mapping[str, Any],
    body: ErasureRequest,
) -> dict[str, Any]:
    """What an erasure would take of these models, and a page of its uids where they are asked for.

    Raises as `chosen` does; InvalidCursor.
    """
    deadline = Deadline.after(state.settings.query_timeout_seconds)
    each_asked = await foretelling.asked_of(connection, models, asked)
    listed = await _listed(connection, each_asked, body, deadline)
    found = await foretelling.foretell(connection, state.blobs, each_asked, deadline)
    every = [{"model_id": models[model], **asdict(each)} for model, each in found.items()]
    told: dict[str, Any] = {
        "model_id": next(iter(models.values())) if len(models) == 1 else None,
        **asdict(foretelling.total(found.values())),
        "models": [each for each in every if any(each[name] for name in _SAYING)],
    }
    told["partial"] |= listed.partial
    return told | _page(listed, models)


async def _listed(
    connection: AsyncConnection,
    asked: Sequence[AskedOfModel],
    body: ErasureRequest,
    deadline: Deadline,
) -> Listed:
    if not body.uids:
        return Listed(None, None)
    queries, after = [each.query for each in asked], _after(body.cursor)
    return await list_uids(connection, queries, after=after, limit=body.limit, deadline=deadline)


def _page(listed: Listed, models: Mapping[int, str]) -> dict[str, Any]:
    uids, last = listed.uids, listed.last
    named = None if uids is None else [_named(models, each) for each in uids]
    return {"uids": named, "next": None if last is None else cursors.encode(last[0], str(last[1]))}


def _named(models: Mapping[int, str], going: Going) -> dict[str, str]:
    model, uid = going
    return {"model_id": models[model], "uid": str(uid)}


def _after(cursor: str | None) -> Going | None:
    """Where a page goes on. Raises InvalidCursor."""
    key = cursors.decode(cursor, int, str)
    if key is None:
        return None
    try:
        return key[0], UUID(key[1])
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None
