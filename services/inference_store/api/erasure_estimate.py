"""Dry runs of erasures: estimates of what they would remove."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.datastructures import State

from inference_store.erasure.erasures import estimate
from inference_store.erasure.erasures.estimated_quarantine import ModelQuery
from inference_store.erasure.erasures.estimated_uids import ErasedUid, UidPage, list_uids
from inference_store.inference.errors import InvalidCursor
from inference_store.query.bounded import Deadline

from . import cursors
from .schemas.erasures import ErasureRequest

# A model is named if any of these is not zero.
_COUNTS = (
    "inferences",
    "dead_letters",
    "parked_events",
    "held",
    "undecided",
    "partial",
)


async def build_estimate(
    state: State,
    connection: AsyncConnection,
    models: Mapping[int, str],
    asked: Mapping[str, Any],
    body: ErasureRequest,
) -> dict[str, Any]:
    """Estimate what an erasure would remove of these models, with a page of its uids if requested.

    Raises as `chosen` does; InvalidCursor.
    """
    deadline = Deadline.after(state.settings.query_timeout_seconds)
    each_asked = await estimate.prepare_queries(connection, models, asked)
    listed = await _list_uids(connection, each_asked, body, deadline)
    found = await estimate.estimate_erasure(connection, state.blobs, each_asked, deadline)
    every = [{"model_id": models[model], **asdict(each)} for model, each in found.items()]
    told: dict[str, Any] = {
        "model_id": next(iter(models.values())) if len(models) == 1 else None,
        **asdict(estimate.sum_estimates(found.values())),
        "models": [each for each in every if any(each[name] for name in _COUNTS)],
    }
    told["partial"] |= listed.partial
    return told | _format_page(listed, models)


async def _list_uids(
    connection: AsyncConnection,
    asked: Sequence[ModelQuery],
    body: ErasureRequest,
    deadline: Deadline,
) -> UidPage:
    if not body.uids:
        return UidPage(None, None)
    queries, after = [each.query for each in asked], _decode_cursor(body.cursor)
    return await list_uids(connection, queries, after=after, limit=body.limit, deadline=deadline)


def _format_page(listed: UidPage, models: Mapping[int, str]) -> dict[str, Any]:
    uids, last = listed.uids, listed.last
    named = None if uids is None else [_format_uid(models, each) for each in uids]
    return {"uids": named, "next": None if last is None else cursors.encode(last[0], str(last[1]))}


def _format_uid(models: Mapping[int, str], going: ErasedUid) -> dict[str, str]:
    model, uid = going
    return {"model_id": models[model], "uid": str(uid)}


def _decode_cursor(cursor: str | None) -> ErasedUid | None:
    """Return where a page continues. Raises InvalidCursor."""
    key = cursors.decode(cursor, int, str)
    if key is None:
        return None
    try:
        return key[0], UUID(key[1])
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None
