"""Formats erasures for answers: progress, blocked objects, and a sentence if it helps."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.api import time_pages
from inference_store.api.answer import to_dict
from inference_store.erasure import erasures
from inference_store.erasure.erasures import Erasure, obstacles
from inference_store.index import registrations

_NOTHING = "Nothing that is stored matched: nothing was erased."


async def format_page(
    connection: AsyncConnection, found: Sequence[Erasure], limit: int
) -> dict[str, Any]:
    """Format a page of erasures; `found` has one more if there are more."""
    items, following = time_pages.cut_page(found, limit)
    return {"items": [await format_erasure(connection, each) for each in items], "next": following}


async def format_erasure(
    connection: AsyncConnection, one: Erasure, *, not_found: Sequence[str] = ()
) -> dict[str, Any]:
    """Format one erasure."""
    models = await erasures.models_of(connection, one)
    names = await registrations.names(connection, set(models))
    ids = sorted(name for model in models if (name := names.get(model)) is not None)
    asked = None if one.asked is None else {k: v for k, v in one.asked.items() if k != "saved"}
    standing = await obstacles.listed(connection, one.id)
    without = ("model", "table_rows", "marked", "held", "in_force_at", "given_up")
    return to_dict(one, *without) | {
        "model_id": None if one.model is None else names.get(one.model),
        "model_ids": ids,
        "asked": asked,
        "rows": one.table_rows,
        "progress": _format_progress(one),
        "given_up": None if one.given_up is None else _format_waiver(one.given_up),
        "obstacles": [to_dict(each, "erasure", "seen_at") for each in standing],
        "not_found": list(not_found),
        "message": _build_message(one),
    }


def _format_progress(one: Erasure) -> dict[str, Any]:
    left = max(0, one.marked - _count_done(one) - one.held)
    rate = _compute_rate(one)
    known = one.deleting_since is not None and rate
    return {
        "marked": one.marked,
        "erased": _count_done(one),
        "held": one.held,
        "left": left,
        "per_second": rate,
        "seconds_left": round(left / rate, 1) if known and rate else None,
    }


def _format_waiver(said: dict[str, Any]) -> dict[str, Any]:
    holds = said.get("holds", {})
    return {"by": said["by"], "held": [{"hold": h, "inferences": n} for h, n in holds.items()]}


def _count_done(one: Erasure) -> int:
    """Return how many are done: inferences, or objects if it is about objects."""
    return one.objects if one.scope == "object" else one.inferences


def _compute_rate(one: Erasure) -> float | None:
    """Return inferences a second since the present phase began; None if nothing is being done."""
    if one.deleting_since is not None:
        since, done = one.deleting_since, _count_done(one)
    elif one.begun_at is not None:
        since, done = one.begun_at, one.marked
    else:
        return None
    seconds = ((one.finished_at or datetime.now(UTC)) - since).total_seconds()
    return round(done / seconds, 3) if seconds > 0 else None


def _build_message(one: Erasure) -> str | None:
    over = one.state in {"deleted", "certified"}
    return _NOTHING if over and one.cause == "request" and not one.inferences else None
