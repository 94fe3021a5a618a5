"""Answers about legal holds."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import Hold
from inference_store.erasure.holds.changes import Placement
from inference_store.erasure.holds.hold import HoldRevision
from inference_store.erasure.holds.hold_filter import format_filter, list_declared_types
from inference_store.index import model_numbers

from .schemas.holds import HoldChange, PlacedHold, ShownClaim, ShownHold

_CLAIMS = 100


async def find_names(
    connection: AsyncConnection, models: Collection[int | None]
) -> Mapping[int, str]:
    """Return the ids of models, registered or not."""
    return await model_numbers.names(connection, {model for model in models if model is not None})


def show_hold(hold: Hold, ids: Mapping[int, str]) -> ShownHold:
    """Make the answer about a hold."""
    return ShownHold.show(hold, **_describe(hold, ids))


async def show_placed(
    connection: AsyncConnection, placement: Placement, warnings: Sequence[str]
) -> PlacedHold:
    """Make the answer about a hold that has just been placed, with what erasures had claimed."""
    claims = placement.claimed[:_CLAIMS]
    ids = await find_names(connection, [placement.hold.model, *(claim.model for claim in claims)])
    return PlacedHold.show(
        placement.hold,
        **_describe(placement.hold, ids),
        claimed=len(placement.claimed),
        more=placement.has_more,
        claims=[ShownClaim.show(claim, model_id=ids.get(claim.model)) for claim in claims],
        warnings=warnings,
    )


def show_change(change: HoldRevision) -> HoldChange:
    """Make the answer about one revision of a hold."""
    document = dict(change.document)
    if document.get("inference_ids") is None and "filter" in document:
        document["filter"] = format_filter(document["filter"])
    else:
        document.pop("filter", None)
    return HoldChange.show(change, document=document)


def _describe(hold: Hold, ids: Mapping[int, str]) -> dict[str, Any]:
    """Return the fields that a hold does not have itself."""
    has_filter = hold.inference_ids is None
    return {
        "model_id": None if hold.model is None else ids.get(hold.model),
        "filter": format_filter(hold.filter) if has_filter else None,
        "types": list_declared_types(hold.filter) if has_filter else {},
        "state": hold.state(datetime.now(UTC)),
    }
