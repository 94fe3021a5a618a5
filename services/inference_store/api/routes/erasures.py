"""Erasures: every deletion is one."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from inference_store.api import moments
from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.problems import refusals
from inference_store.api.schemas.erasures import ErasurePage, ShownErasure
from inference_store.api.schemas.links import PageParameters
from inference_store.store.errors import NotFound
from inference_store.store.retention import erasures
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["retention"])


@router.get(
    "/erasures",
    response_model=ErasurePage,
    responses=refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List erasures",
)
async def list_erasures(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Erasures, the newest first."""
    found = await erasures.listed(
        connection, before=moments.before(page), limit=page.limit + 1, within=access.reach
    )
    return Answer(await moments.page(connection, found, page.limit))


@router.get(
    "/erasures/{erasure_id}",
    response_model=ShownErasure,
    responses=refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Follow an erasure",
)
async def get_erasure(erasure_id: UUID, connection: Reading, access: Asking) -> Answer:
    """How far an erasure is."""
    erasure = await erasures.find(connection, erasure_id, within=access.reach)
    if erasure is None:
        raise NotFound(f"There is no erasure {erasure_id}.")
    return Answer((await moments.page(connection, [erasure], 1))["items"][0])
