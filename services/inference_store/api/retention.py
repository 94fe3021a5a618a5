"""Why an inference is kept, and runs of retention."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import runs
from inference_store.erasure.policies import EffectiveRule, list_models, warn_of_empty_project
from inference_store.erasure.preview import explanation
from inference_store.erasure.runs import RetentionRun
from inference_store.index import registrations
from inference_store.inference.errors import NotFound

from . import cursors
from .access import Asking, Needs, Over
from .answer import Answer, Shown
from .cursors import PageParameters
from .dependencies import Reading, Writing
from .http import InferenceId, ModelId
from .policies import DecidedBy, PolicyOf, add_policy_route, check_allowed
from .policy_changes import show_rule
from .routing import Router


class ShownLimit(Shown):
    """A limit that applies to the model."""

    name: str
    """`max_inferences`."""
    most: int
    level: str
    """Whose policy says it: `model`, `project` or `default`."""


class PendingRule(Shown):
    """The rule that decides once everything pending has begun."""

    begins_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it then, and it is kept."""


class HeldBy(Shown):
    """A legal hold."""

    id: UUID
    name: str


class RetentionExplanation(Shown):
    """The rule that decides about an inference. A time is null where the part is kept for ever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    """Null: no rule is of it, and it is kept."""
    pending: PendingRule | None
    """Null: nothing that applies to the model is pending."""
    input_goes_at: datetime | None
    """From here on the next run takes it, unless a hold keeps it."""
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: list[ShownLimit]
    """They may take it earlier."""
    held_by: HeldBy | None
    """The oldest hold that keeps it, whatever else is said here."""


class ShownRun(Shown):
    """One run of retention."""

    id: UUID
    model_id: str | None
    """Null: of every model, or of those of the project."""
    project_id: str | None
    """Of each of its models."""
    cause: str
    """`schedule` or `request`."""
    state: str
    """pending, running, done or failed."""
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    inputs_deleted: int
    responses_deleted: int
    inferences_deleted: int
    partitions_dropped: int
    error: str | None


class RequestedRun(ShownRun):
    """A run that was just asked for."""

    warnings: list[str]


class RunPage(Shown):
    """Runs, the newest first."""

    items: list[ShownRun]
    next: str | None


router = Router("retention")
_NEEDED = Needs(Right.READ, Over.SOME)


@router.add(
    "GET /models/{model_id}/inferences/{inference_id}/retention",
    RetentionExplanation,
    Right.READ,
    "Why an inference is kept",
    404,
)
async def get_retention(
    model_id: ModelId, inference_id: InferenceId, connection: Reading, access: Asking
) -> Answer:
    """Which rule of which policy decides about the newest inference of that id, and which one once
    what is pending has begun; when its parts go by both, which limits apply beside, and the oldest
    hold that keeps it."""
    registration, same = await access.find_inferences(connection, model_id, inference_id)
    explained = await explanation.explain_retention(connection, registration.model, same.newest)
    pending = explained.pending
    return Answer(
        RetentionExplanation.show(
            explained,
            uid=same.newest,
            decided_by=_show_rule(explained.decided_by),
            pending=pending
            and PendingRule.show(pending, decided_by=_show_rule(pending.decided_by)),
            limits=[ShownLimit.show(limit, level=limit.of.level) for limit in explained.limits],
        )
    )


@router.add("GET /retention/runs", RunPage, _NEEDED, "List runs")
async def list_runs(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Runs of retention, the newest first; those of every model only where everything is read."""
    listed_runs = await runs.list_runs(
        connection, before=cursors.decode_before(page), limit=page.limit + 1, within=access.scope
    )
    items, following = cursors.cut_time_page(listed_runs, page.limit)
    return Answer(RunPage(items=await _show_runs(connection, items), next=following))


@router.add("GET /retention/runs/{run_id}", ShownRun, _NEEDED, "Read a run", 404)
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
    router, "POST /run", "run", RequestedRun, "Run retention now, by {policy}", 404, status=202
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
    return Answer(body, status_code=202, location=f"/v1/retention/runs/{run.id}")


def _show_rule(rule: EffectiveRule | None) -> DecidedBy | None:
    return None if rule is None else show_rule(rule.of, rule.number, rule.rule.name)
