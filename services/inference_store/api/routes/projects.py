"""Projects: what registrations name as one."""

from typing import Annotated

from fastapi import Query

from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.projects import ProjectPage, ShownProject
from inference_store.index import registrations

router = make_router("models")


@router.get(
    "/projects",
    response_model=ProjectPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List projects",
)
async def list_projects(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Projects with models that the caller sees, in order of their ids."""
    after = cursors.decode_one(page.cursor, str)
    rows = await registrations.list_projects(
        connection, limit=page.limit + 1, after=after, within=access.scope
    )
    items, following = cursors.cut_page(rows, page.limit, lambda row: row.project_id)
    return Answer(ProjectPage(items=[ShownProject.show(row) for row in items], next=following))
