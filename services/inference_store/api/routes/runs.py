"""Runs of retention."""

from typing import Annotated, Any
from uuid import UUID

from fastapi import Depends, Query

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import time_pages
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer, to_dict
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.policies import check_allowed
from inference_store.api.policy_levels import POLICY_LEVELS, PolicyLevel
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.runs import RunPage, ShownRun
from inference_store.erasure import runs
from inference_store.erasure.policies import Of
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
    found = await runs.listed(
        connection, before=time_pages.decode_before(page), limit=page.limit + 1, within=access.reach
    )
    return Answer(await time_pages.format_runs(connection, found, page.limit))


@router.get(
    "/retention/runs/{run_id}",
    response_model=ShownRun,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a run",
)
async def get_run(run_id: UUID, connection: Reading, access: Asking) -> Answer:
    """One run of retention."""
    run = await runs.find(connection, run_id, within=access.reach)
    if run is None:
        raise NotFound(f"There is no run {run_id}.")
    return Answer((await time_pages.format_runs(connection, [run], 1))["items"][0])


def _add_route(place: PolicyLevel) -> None:
    """Add the routes of one level."""

    @router.post(
        f"{place.path}/retention-policy/run",
        status_code=202,
        response_model=ShownRun,
        responses=document_refusals(404),
        openapi_extra=needs(Right.ADMIN, place.write),
        name=f"run_{place.level}_policy",
        summary=f"Run retention now, by {place.words}",
    )
    async def run_policy(
        connection: Writing, access: Asking, of: Annotated[Of, Depends(place.of)]
    ) -> Answer:
        """Ask the retention service to apply now what is in force for the model, for each model of
        the project, or for all."""
        found = await check_allowed(connection, access, of)
        project_id = of.subject if of.level == "project" else None
        model = None if found is None else found.model
        run = await runs.request(connection, model, project_id=project_id)
        whose: dict[str, Any] = {} if project_id is None else {"project_id": project_id}
        await access.note(connection, Action.RETENTION_REQUESTED, found, run=str(run.id), **whose)
        model_id = None if found is None else found.model_id
        body = to_dict(run, "model") | {"model_id": model_id}
        return Answer(body, status_code=202, headers={"Location": f"/v1/retention/runs/{run.id}"})


for _each in POLICY_LEVELS:
    _add_route(_each)
