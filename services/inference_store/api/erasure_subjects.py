"""Reads the subject of a requested erasure: how far it reaches, and whether its key is a slip."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.datastructures import State

from inference_store.erasure.estimate.erasure_estimate import has_events_of_subject
from inference_store.erasure.quarantine import events
from inference_store.erasure.quarantine.events import Reach
from inference_store.erasure.requests import describe_subject, find_unknown_key
from inference_store.query.deadline import Deadline

from .access import Access
from .schemas.erasures import ErasureRequest, ErasureRequestAcross


async def read_subject(
    state: State,
    connection: AsyncConnection,
    access: Access,
    models: Mapping[int, str],
    body: ErasureRequest,
) -> dict[str, Any]:
    """Return the criteria of an erasure of a subject, as `erasure.asked` has them.

    Raises UnknownKey if no model has seen the key, and no dead letter or parked event that the
    erasure reaches mentions the subject; else as `describe_subject` does.
    """
    assert body.subject is not None
    subject = body.subject.subject
    criteria = await describe_subject(connection, list(models), subject)
    reach = _find_reach(access, body)
    if reach is not None:
        criteria[events.MEMBER] = reach
    refusal = await find_unknown_key(connection, list(models), subject)
    if refusal is not None:
        deadline = Deadline.after(state.settings.query_timeout_seconds)
        if not await has_events_of_subject(connection, state.blobs, models, criteria, deadline):
            raise refusal
    return criteria


def _find_reach(access: Access, body: ErasureRequest) -> Reach | None:
    """Return how far the erasure reaches among events of no registered model.

    They may belong to any model, so only who may erase everything reaches them.
    """
    if not access.scope.is_everything:
        return None
    if not isinstance(body, ErasureRequestAcross):
        return "named"
    return "all" if body.project_id is None and body.model_ids is None else "named"
