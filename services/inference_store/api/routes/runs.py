"""Runs of retention."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from inference_store.api import moments
from inference_store.api.access import Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.runs import RunPage, ShownRun
from inference_store.store.access import Action
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


@router.post(
    "/models/{model_id}/retention-policy/run",
    status_code=202,
    response_model=ShownRun,
    responses=refusals(404),
    openapi_extra=needs(Right.ADMIN),
    summary="Run retention now",
)
async def run_policy(model_id: ModelId, connection: Writing, access: Asking) -> Answer:
    """Ask the retention service to apply what is in force for the model now."""
    registration = await access.model(connection, model_id)
    run = await runs.request(connection, registration.model)
    await access.note(connection, Action.RETENTION_REQUESTED, registration, run=str(run.id))
    body = named(run, "model") | {"model_id": model_id}
    return Answer(body, status_code=202, headers={"Location": f"/v1/retention/runs/{run.id}"})
