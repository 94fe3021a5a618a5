"""What erasures took of an export, told to those who may have copies."""

from typing import Annotated
from uuid import UUID

from fastapi import Query

from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.cursors import PageParameters
from inference_store.api.dependencies import Reading
from inference_store.api.problems import document_refusals
from inference_store.api.routing import Router
from inference_store.api.schemas.exports_erased import ErasedMemberPage, ShownErasedMember
from inference_store.export.erased import FIRST, list_erased
from inference_store.export.jobs import find_job
from inference_store.inference.errors import NotFound

router = Router("exports")


@router.get(
    "/exports/{export_id}/erased",
    response_model=ErasedMemberPage,
    responses=document_refusals(404),
    openapi_extra=needs(Right.EXPORT, Over.SOME),
    summary="List what erasures took of an export",
)
async def list_erased_members(
    export_id: UUID,
    page: Annotated[PageParameters, Query()],
    connection: Reading,
    access: Asking,
) -> Answer:
    """What was exported and has been erased since, in the order of its erasure: delete it from
    every copy. The `cursor` of the last item shows what has come since."""
    if await find_job(connection, export_id, within=access.scope) is None:
        raise NotFound(f"There is no export {export_id}.")
    key = cursors.decode(page.cursor, int, int)
    after = FIRST if key is None else (key[0], key[1])
    erased = await list_erased(connection, export_id, after=after, limit=page.limit + 1)
    items, following = cursors.cut_page(erased, page.limit, lambda member: member.position)
    shown = [
        ShownErasedMember.show(member, cursor=cursors.encode(*member.position)) for member in items
    ]
    return Answer(ErasedMemberPage(items=shown, next=following))
