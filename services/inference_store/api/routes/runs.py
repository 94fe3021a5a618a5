"""Runs of retention."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from inference_store.api import moments
from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.problems import refusals
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.runs import RunPage, ShownRun
from inference_store.store.errors import NotFound
from inference_store.store.retention import runs
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["retention"])


@router.get(
    "/retention/runs",
    response_model=RunPage,
    responses=refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List runs",
)
async def list_runs(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Runs of retention, the newest first; those of every model only where everything is read."""
    found = await runs.listed(
        connection, before=moments.before(page), limit=page.limit + 1, within=access.reach
    )
    return Answer(await moments.page(connection, found, page.limit))


@router.get(
    "/retention/runs/{run_id}",
    response_model=ShownRun,
    responses=refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a run",
)
async def get_run(run_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One run of retention."""
    run = await runs.find(connection, run_id, within=access.reach)
    if run is None:
        raise NotFound(f"There is no run {run_id}.")
    return Answer((await moments.page(connection, [run], 1))["items"][0])
