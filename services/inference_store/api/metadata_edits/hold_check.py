"""Refuses edits after which a legal hold would not match any more: the inference could be
deleted."""

from collections.abc import Awaitable, Callable
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds
from inference_store.erasure.holds import Hold
from inference_store.inference.errors import HeldByHold


async def require_still_held(
    connection: AsyncConnection, model: int, uid: UUID, edit: Callable[[], Awaitable[None]]
) -> None:
    """Raise HeldByHold if a hold protects the inference, and would not after the edit.

    The edit is tried on the index, and rolled back. Call it after `holds.block_placement`. Raises
    HoldUnreadable.
    """
    keeping = await _filter_holding(
        connection, await holds.list_in_force(connection, [model]), model, uid
    )
    if not keeping:
        return
    trial = await connection.begin_nested()
    await edit()
    after = await _filter_holding(connection, keeping, model, uid)
    await trial.rollback()
    ended = [hold for hold in keeping if hold not in after]
    if ended:
        raise HeldByHold(
            f"The legal hold {ended[0].name!r} ({ended[0].id}) keeps the inference, and would not"
            " any more: change or release the hold first."
        )


async def _filter_holding(
    connection: AsyncConnection, candidates: list[Hold], model: int, uid: UUID
) -> list[Hold]:
    return [hold for hold in candidates if await holds.find_holds(connection, [hold], model, [uid])]
