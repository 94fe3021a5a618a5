"""Answers about erasures: progress, blocked objects, and a sentence if it helps."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api import time_pages
from inference_store.api.schemas.erasures import (
    ErasurePage,
    GivenUp,
    KeptByHold,
    Progress,
    ShownErasure,
)
from inference_store.erasure.progress import Erasure, list_blocked, list_models
from inference_store.erasure.quarantine import events
from inference_store.index import registrations

# Members of a request that nobody sent.
_INTERNAL = ("saved", events.MEMBER)
_NOTHING = "Nothing that is stored matched: nothing was erased."


async def show_page(
    connection: AsyncConnection, erasures: Sequence[Erasure], limit: int
) -> ErasurePage:
    """Make a page of erasures; `found` has one more if there are more."""
    items, following = time_pages.cut_page(erasures, limit)
    shown = [await show_erasure(connection, erasure) for erasure in items]
    return ErasurePage(items=shown, next=following)


async def show_erasure(
    connection: AsyncConnection, erasure: Erasure, *, not_found: Sequence[str] = ()
) -> ShownErasure:
    """Make the answer about one erasure."""
    models = await list_models(connection, erasure)
    names = await registrations.names(connection, set(models))
    criteria = (
        None
        if erasure.asked is None
        else {name: value for name, value in erasure.asked.items() if name not in _INTERNAL}
    )
    return ShownErasure.show(
        erasure,
        model_id=None if erasure.model is None else names.get(erasure.model),
        model_ids=sorted(names[model] for model in models if model in names),
        asked=criteria,
        rows=erasure.table_rows,
        progress=_show_progress(erasure),
        given_up=None if erasure.given_up is None else _show_waiver(erasure.given_up),
        obstacles=await list_blocked(connection, erasure.id),
        not_found=not_found,
        message=_build_message(erasure),
    )


def _show_progress(erasure: Erasure) -> Progress:
    done, rate = _count_done(erasure), _compute_rate(erasure)
    rest = max(0, erasure.marked - done - erasure.held)
    is_known = erasure.deleting_since is not None and rate
    return Progress(
        marked=erasure.marked,
        erased=done,
        held=erasure.held,
        left=rest,
        per_second=rate,
        seconds_left=round(rest / rate, 1) if is_known and rate else None,
    )


def _show_waiver(waived: dict[str, Any]) -> GivenUp:
    holds = waived.get("holds", {}).items()
    return GivenUp(by=waived["by"], held=[KeptByHold(hold=UUID(h), inferences=n) for h, n in holds])


def _count_done(erasure: Erasure) -> int:
    """Return how many are done: inferences, or objects if it is about objects."""
    return erasure.objects if erasure.scope == "object" else erasure.inferences


def _compute_rate(erasure: Erasure) -> float | None:
    """Return inferences a second since the present phase began; None if nothing is being done."""
    if erasure.deleting_since is not None:
        since, done = erasure.deleting_since, _count_done(erasure)
    elif erasure.begun_at is not None:
        since, done = erasure.begun_at, erasure.marked
    else:
        return None
    seconds = ((erasure.finished_at or datetime.now(UTC)) - since).total_seconds()
    return round(done / seconds, 3) if seconds > 0 else None


def _build_message(erasure: Erasure) -> str | None:
    is_over = erasure.state in {"deleted", "certified"}
    is_empty = not erasure.inferences and not any(erasure.table_rows.values())
    return _NOTHING if is_over and erasure.cause == "request" and is_empty else None
