"""Retention policies, and runs of them on request."""

from fastapi import APIRouter
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.api.access import Asking, GuardedRoute, needs
from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading, Writing
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.policies import ShownPolicy
from inference_store.api.schemas.runs import ShownRun
from inference_store.store.access import Action
from inference_store.store.errors import Fault, Invalid, NotFound
from inference_store.store.json_text import storable
from inference_store.store.ledger import Body, Note
from inference_store.store.retention import policies, runs
from inference_store.store.retention.policies import RetentionPolicy, StoredPolicy
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["retention"])
_POLICY = "/models/{model_id}/retention-policy"


@router.get(
    _POLICY,
    response_model=ShownPolicy,
    responses=refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Read a policy",
)
async def get_policy(model_id: ModelId, connection: Reading, access: Asking) -> Answer:
    """The model's retention policy; 404 where it has none, and everything is kept."""
    model = (await access.model(connection, model_id)).model
    found = await policies.get(connection, model)
    if found is None:
        raise NotFound(f"The model {model_id!r} has no retention policy: everything is kept.")
    return _policy(model_id, found)


@router.put(
    _POLICY,
    response_model=ShownPolicy,
    responses=refusals(400, 404, 412, 413),
    openapi_extra=needs(Right.ADMIN),
    summary="Set a policy",
)
async def put_policy(
    model_id: ModelId,
    body: RetentionPolicy,
    ledger: LedgerOf,
    if_match: IfMatch,
    access: Asking,
) -> Answer:
    """Set how long inputs and inferences are kept; it applies to those stored already, too."""
    _refuse_unstorable(body)
    rules = [rule.model_dump(exclude_none=True) for rule in body.rules]

    async def said(connection: AsyncConnection) -> Body:
        registration = await access.model(connection, model_id, lock=True)
        revision = await policies.next_revision(connection, registration.model, if_match)
        return {"model_id": model_id, "rules": rules, "revision": revision}

    def noted(found: StoredPolicy) -> Note:
        detail = {"rules": rules, "revision": found.revision}
        return Note(Action.POLICY_SET, model_id, detail)

    found = await ledger.write("policy_set", said, actor=access.who, note=noted)
    return _policy(model_id, found)


@router.delete(
    _POLICY,
    status_code=204,
    response_class=Response,
    responses=refusals(404, 412),
    openapi_extra=needs(Right.ADMIN),
    summary="Remove a policy",
)
async def delete_policy(
    model_id: ModelId, ledger: LedgerOf, if_match: IfMatch, access: Asking
) -> Response:
    """Keep everything from now on."""

    async def said(connection: AsyncConnection) -> Body:
        model = (await access.model(connection, model_id)).model
        if await policies.next_revision(connection, model, if_match) == 1:
            raise NotFound(f"The model {model_id!r} has no retention policy.")
        return {"model_id": model_id}

    note = Note(Action.POLICY_REMOVED, model_id, {})
    await ledger.write("policy_removed", said, actor=access.who, note=note)
    return Response(status_code=204)


@router.post(
    f"{_POLICY}/run",
    status_code=202,
    response_model=ShownRun,
    responses=refusals(404),
    openapi_extra=needs(Right.ADMIN),
    summary="Run retention now",
)
async def run_policy(model_id: ModelId, connection: Writing, access: Asking) -> Answer:
    """Ask the retention service to apply the model's policy now."""
    registration = await access.model(connection, model_id)
    run = await runs.request(connection, registration.model)
    await access.note(connection, Action.RETENTION_REQUESTED, registration, run=str(run.id))
    body = named(run, "model") | {"model_id": model_id}
    return Answer(body, status_code=202, headers={"Location": f"/v1/retention/runs/{run.id}"})


def _refuse_unstorable(policy: RetentionPolicy) -> None:
    faults = [
        Fault(f"rules[{number}].name", "it holds NUL or a lone surrogate: leave that out")
        for number, rule in enumerate(policy.rules)
        if rule.name is not None and not storable(rule.name)
    ]
    if faults:
        raise Invalid("A rule has a name that cannot be stored.", faults=faults)


def _policy(model_id: str, found: StoredPolicy) -> Answer:
    body = {
        "model_id": model_id,
        "rules": [rule.model_dump() for rule in found.policy.rules],
        "revision": found.revision,
        "updated_at": found.updated_at,
    }
    return Answer(body, headers={"ETag": f'"{found.revision}"'})
