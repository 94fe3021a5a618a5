"""Dry runs of erasures: estimates of what they would remove."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.datastructures import State

from inference_store.erasure.estimate import erasure_estimate
from inference_store.erasure.estimate.erasure_estimate import (
    ErasedUid,
    ModelQuery,
    UidPage,
    estimate_unattributed,
    list_uids,
)
from inference_store.erasure.estimate.exported import find_exports
from inference_store.export.erased import MemberLists
from inference_store.inference.errors import InvalidCursor
from inference_store.query.deadline import Deadline

from . import cursors
from .filters import RequestedFilter
from .schemas.erasures import ErasureRequest, Foretold, ForetoldOfModel, GoingUid

_MOST_EXPORTS = 100
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
    criteria: Mapping[str, Any],
    body: ErasureRequest,
    *,
    filter: RequestedFilter,
    not_found: Sequence[str],
) -> Foretold:
    """Estimate what an erasure would remove of these models, with a page of its uids if requested.

    Raises as `chosen` does; InvalidCursor.
    """
    deadline = Deadline.after(state.settings.query_timeout_seconds)
    queries = await erasure_estimate.prepare_queries(connection, models, criteria)
    uid_page = await _list_uids(connection, queries, body, deadline)
    estimates = await erasure_estimate.estimate_erasure(connection, state.blobs, queries, deadline)
    beside = await estimate_unattributed(connection, state.blobs, models, criteria, deadline)
    total, lists = erasure_estimate.sum_estimates([*estimates.values(), beside]), MemberLists()
    matching = [model_query.query for model_query in queries]
    all_exports = await find_exports(connection, matching, lists, deadline)
    return Foretold.show(
        total,
        model_id=next(iter(models.values())) if len(models) == 1 else None,
        partial=total.partial or uid_page.partial or not all_exports,
        exports=len(lists.exports),
        export_ids=sorted(lists.exports)[:_MOST_EXPORTS],
        models=[
            ForetoldOfModel.show(estimate, model_id=models[model])
            for model, estimate in estimates.items()
            if any(getattr(estimate, name) for name in _COUNTS)
        ],
        not_found=not_found,
        **_show_uids(uid_page, models, filter),
        **filter.answer_members,
    )


async def _list_uids(
    connection: AsyncConnection,
    model_queries: Sequence[ModelQuery],
    body: ErasureRequest,
    deadline: Deadline,
) -> UidPage:
    if not body.uids:
        return UidPage(None, None)
    queries, after = (
        [model_query.query for model_query in model_queries],
        _decode_cursor(body.cursor),
    )
    return await list_uids(connection, queries, after=after, limit=body.limit, deadline=deadline)


def _show_uids(
    uid_page: UidPage, models: Mapping[int, str], filter: RequestedFilter
) -> dict[str, Any]:
    uids, last = uid_page.uids, uid_page.last
    shown_uids = (
        None if uids is None else [GoingUid(model_id=models[m], uid=uid) for m, uid in uids]
    )
    following = None if last is None else filter.pin(cursors.encode(last[0], str(last[1])))
    return {"uids": shown_uids, "next": following}


def _decode_cursor(cursor: str | None) -> ErasedUid | None:
    """Return where a page continues. Raises InvalidCursor."""
    key = cursors.decode(cursor, int, str)
    if key is None:
        return None
    try:
        return key[0], UUID(key[1])
    except ValueError:
        raise InvalidCursor("The cursor cannot be used: ask without one.") from None
