"""Runs of retention."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import time_pages
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.policies import check_allowed
from inference_store.api.policy_levels import PolicyOf, add_policy_route
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.parameters import PageParameters
from inference_store.api.schemas.runs import RequestedRun, RunPage, ShownRun
from inference_store.erasure import runs
from inference_store.erasure.policies import list_models, warn_of_empty_project
from inference_store.erasure.runs import RetentionRun
from inference_store.index import registrations
from inference_store.inference.errors import NotFound

router = make_router("retention")


@router.get(
    "/retention/runs",
    response_model=RunPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List runs",
)
async def list_runs(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Runs of retention, the newest first; those of every model only where everything is read."""
    listed_runs = await runs.list_runs(
        connection, before=time_pages.decode_before(page), limit=page.limit + 1, within=access.scope
    )
    items, following = time_pages.cut_page(listed_runs, page.limit)
    return Answer(RunPage(items=await _show_runs(connection, items), next=following))


@router.get(
    "/retention/runs/{run_id}",
    response_model=ShownRun,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a run",
)
async def get_run(run_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One run of retention."""
    run = await runs.find_run(connection, run_id, within=access.scope)
    if run is None:
        raise NotFound(f"There is no run {run_id}.")
    [shown] = await _show_runs(connection, [run])
    return Answer(shown)


async def _show_runs(connection: Reading, runs: Sequence[RetentionRun]) -> list[ShownRun]:
    names = await registrations.names(connection, {run.model for run in runs})
    return [ShownRun.show(run, model_id=run.model and names.get(run.model)) for run in runs]


@add_policy_route(
    router,
    "POST",
    "run",
    "/run",
    status_code=202,
    response_model=RequestedRun,
    responses=document_refusals(404),
    summary="Run retention now, by {policy}",
)
async def run_policy(connection: Writing, access: Asking, of: PolicyOf) -> Answer:
    """Ask the retention service to apply now what is in force for the model, for each model of
    the project, or for all."""
    registration = await check_allowed(connection, access, of)
    project_id = of.subject if of.level == "project" else None
    model = None if registration is None else registration.model
    run = await runs.request_run(connection, model, project_id=project_id)
    whose: dict[str, Any] = {} if project_id is None else {"project_id": project_id}
    await access.note(
        connection, Action.RETENTION_REQUESTED, registration, run=str(run.id), **whose
    )
    warnings = warn_of_empty_project(of, await list_models(connection, of))
    model_id = None if registration is None else registration.model_id
    body = RequestedRun.show(run, model_id=model_id, warnings=warnings)
    return Answer(body, status_code=202, headers={"Location": f"/v1/retention/runs/{run.id}"})
