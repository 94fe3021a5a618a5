"""Formats legal holds for answers."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import Hold
from inference_store.erasure.holds.making import spelt
from inference_store.erasure.holds.placing import Placed
from inference_store.erasure.holds.stored import Change
from inference_store.index import model_numbers

from .answer import to_dict

_CLAIMS = 100


async def find_names(
    connection: AsyncConnection, models: Collection[int | None]
) -> Mapping[int, str]:
    """Return the ids of models, registered or not."""
    return await model_numbers.names(connection, {each for each in models if each is not None})


def format_hold(hold: Hold, ids: Mapping[int, str]) -> dict[str, Any]:
    """Format a hold, with the id of its model and its filter as text."""
    values = to_dict(hold, "model", "in_force_at")
    return values | {
        "model_id": None if hold.model is None else ids.get(hold.model),
        "filter": spelt(hold.filter) if hold.inference_ids is None else None,
        "state": hold.state(datetime.now(UTC)),
    }


async def format_placed(
    connection: AsyncConnection, found: Placed, warnings: Sequence[str]
) -> dict[str, Any]:
    """Format a hold that has just been placed, with what erasures had claimed before."""
    claims = found.claimed[:_CLAIMS]
    ids = await find_names(connection, [found.hold.model, *(claim.model for claim in claims)])
    return format_hold(found.hold, ids) | {
        "claimed": len(found.claimed),
        "more": found.more,
        "claims": [
            to_dict(claim, "model") | {"model_id": ids.get(claim.model)} for claim in claims
        ],
        "warnings": list(warnings),
    }


def format_document(change: Change) -> dict[str, Any]:
    """Format one revision of a hold."""
    kept = ("name", "reason", "model_id", "inference_ids", "until")
    said = {name: change.document[name] for name in kept if name in change.document}
    if change.document.get("inference_ids") is None and "filter" in change.document:
        said["filter"] = spelt(change.document["filter"])
    return to_dict(change, "document") | {"document": said}
