"""Why an inference is kept, and runs of retention."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import preview, runs
from inference_store.erasure.policies import list_models, warn_of_empty_project
from inference_store.erasure.runs import RetentionRun
from inference_store.index import registrations

from .access import Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading, Writing
from .fields import InQuery, PageAnswer, PageParameters
from .http import INFERENCE, InferenceId, ModelId
from .policies import DecidedBy, PolicyOf, add_policy_route, check_allowed, show_rule
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
    """Null if no rule applies to it then: it is kept."""


class HeldBy(Shown):
    """A legal hold."""

    id: UUID
    name: str


class RetentionExplanation(Shown):
    """The rule that decides about an inference. A time is null if the part is kept forever."""

    uid: UUID
    received_at: datetime
    decided_by: DecidedBy | None
    """Null if no rule applies to it: it is kept."""
    pending: PendingRule | None
    """Null if nothing that applies to the model is pending."""
    input_goes_at: datetime | None
    """From then on the next run deletes it, unless a hold keeps it."""
    response_goes_at: datetime | None
    inference_goes_at: datetime | None
    limits: list[ShownLimit]
    """They may delete it earlier."""
    held_by: HeldBy | None
    """The oldest hold that keeps it, regardless of everything else."""


class ShownRetentionRun(RetentionRun, Shown):
    """One run of retention."""

    model_id: str | None
    """Null: of every model, or of those of the project."""
    cause: str  # type: ignore[assignment]  # a later version may have more
    """`schedule` or `request`."""
    state: str  # type: ignore[assignment]
    """pending, running, done or failed."""


class RequestedRetentionRun(ShownRetentionRun):
    """A run that was just requested."""

    warnings: list[str]


router = Router("retention")
_NEEDED = Needs(Right.READ, Over.SOME)


@router.add(f"GET {INFERENCE}/retention", Right.READ, "Why an inference is kept")
async def get_retention(
    model_id: ModelId, inference_id: InferenceId, connection: Reading, access: Asking
) -> Answer[RetentionExplanation]:
    """Which rule of which policy decides about the newest inference of that id, and which one once
    what is pending has begun; when its parts go by both, which limits apply beside, and the oldest
    hold that keeps it."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    explained = await preview.explain_retention(connection, registration.model, uids[0])
    later, limit = show_rule(explained.decided_later), explained.limit
    pending = explained.begins_at and PendingRule(begins_at=explained.begins_at, decided_by=later)
    return Answer(
        RetentionExplanation.show(
            explained,
            uid=uids[0],
            decided_by=show_rule(explained.decided_by),
            pending=pending,
            limits=[] if limit is None else [ShownLimit.show(limit, level=limit.of.level)],
            **{f"{part}_goes_at": at for part, at in explained.goes_at.items()},
        )
    )


@router.add("GET /retention/runs", _NEEDED, "List runs")
async def list_runs(
    page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownRetentionRun]:
    """Runs of retention, the newest first. Those of every model are listed only for callers who may
    read everything."""
    listed_runs = await runs.list_runs(
        connection, before=page.find_before(), limit=page.limit + 1, within=access.scope
    )
    names = await registrations.names(connection, {run.model for run in listed_runs})
    return page.answer(listed_runs, partial(_show_run, names))


@router.add("GET /retention/runs/{run_id}", _NEEDED, "Read a run")
async def get_run(run_id: UUID, connection: Reading, access: Asking) -> Answer[ShownRetentionRun]:
    """One run of retention."""
    run = await runs.get_run(connection, run_id, within=access.scope)
    return Answer(_show_run(await registrations.names(connection, {run.model}), run))


def _show_run(names: Mapping[int, str], run: RetentionRun) -> ShownRetentionRun:
    return ShownRetentionRun.show(run, model_id=run.model and names.get(run.model))


@add_policy_route("POST /run", "run", "Run retention now, by {policy}", 404, status=202)
async def run_policy(
    connection: Writing, access: Asking, of: PolicyOf
) -> Answer[RequestedRetentionRun]:
    """Ask the retention service to apply the policies in force now: to the model, to each model of
    the project, or to all models."""
    registration = await check_allowed(connection, access, of)
    model = None if registration is None else registration.model
    run = await runs.request_run(connection, model, project_id=of.project_id)
    noted: dict[str, Any] = {"run": str(run.id)}
    noted |= {} if of.project_id is None else {"project_id": of.project_id}
    await access.note(connection, Action.RETENTION_REQUESTED, registration, **noted)
    warnings = warn_of_empty_project(of, await list_models(connection, of))
    body = RequestedRetentionRun.show(run, model_id=of.model_id, warnings=warnings)
    return Answer(body, status_code=202, location=f"/v1/retention/runs/{run.id}")
