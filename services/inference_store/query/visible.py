"""Reads the inferences that exist and are not being erased."""

from collections.abc import Collection, Sequence
from functools import cache
from uuid import UUID

from sqlalchemy import ARRAY, any_, bindparam, select
from sqlalchemy.dialects.postgresql import INTEGER
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.prepared_statement import PreparedStatement
from inference_store.index.tables import inference

from .lookup import is_marked
from .read import Inference, read
from .scan_range import Range


async def read_visible(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    spans: Sequence[Range],
    *,
    include: Collection[str] = (),
) -> list[Inference]:
    """Return the inferences that lie in the spans and are not being erased, in order."""
    visible = await find_visible(connection, model, uids, spans)
    return await read(connection, model, [uid for uid in uids if uid in visible], include=include)


async def find_visible(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], spans: Sequence[Range]
) -> set[UUID]:
    """Return those of the uids whose inferences lie in the spans and are not being erased."""
    inside = [uid for uid in uids if any(lo <= uid < hi for lo, hi in spans)]
    if not inside:
        return set()
    rows = await _select_visible().fetch(connection, {"model": model, "uids": inside})
    return {row["uid"] for row in rows}


@cache
def _select_visible() -> PreparedStatement:
    here = inference.c
    model = bindparam("model", type_=INTEGER())
    uids = bindparam("uids", type_=ARRAY(UUID_TYPE(as_uuid=True)))
    there = (here.model == model, here.uid == any_(uids))
    return PreparedStatement(select(here.uid).where(*there, ~is_marked(model, here.uid)))
