"""Retention policies of a model, of a project, and of all: each route three times."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.responses import Response

from inference_store.access import Action
from inference_store.api import cursors
from inference_store.api.access import Asking
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading
from inference_store.api.policies import (
    answer_policy,
    build_answer,
    check_allowed,
    show_state,
    show_version,
)
from inference_store.api.policy_changes import describe_request, show_would_delete
from inference_store.api.policy_levels import PolicyOf, add_policy_route
from inference_store.api.policy_requests import ChangeRequest, PreviewRequest
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.policies import (
    PolicyBody,
    PolicyHistory,
    PolicyPreview,
    Reason,
    ShownPolicy,
    WouldDelete,
)
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body, Note
from inference_store.erasure.policies import PolicyOwner
from inference_store.erasure.preview import preview

router = make_router("retention")


@add_policy_route(
    router,
    "GET",
    "get",
    response_model=ShownPolicy,
    responses=document_refusals(404),
    summary="Read {policy}",
)
async def get_policy(connection: Reading, access: Asking, of: PolicyOf) -> Answer:
    """The policy in force, and what waits to begin; 404 where there is neither."""
    await check_allowed(connection, access, of)
    return await answer_policy(connection, of)


@add_policy_route(
    router,
    "GET",
    "history_of",
    "/history",
    response_model=PolicyHistory,
    responses=document_refusals(404),
    summary="Versions of {policy}",
)
async def get_history(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking, of: PolicyOf
) -> Answer:
    """Who set it, when, and what it was before: the newest first."""
    await check_allowed(connection, access, of)
    before = cursors.decode_one(page.cursor, int)
    versions = await policies.list_versions(connection, of, before=before, limit=page.limit + 1)
    items, following = cursors.cut_page(versions, page.limit, lambda version: version.revision)
    state = await policies.find_state(connection, of)
    shown = [show_version(version, state) for version in items]
    return Answer(PolicyHistory(items=shown, next=following))


@add_policy_route(
    router,
    "PUT",
    "set",
    response_model=ShownPolicy,
    responses=document_refusals(400, 404, 412, 413, 501),
    summary="Set {policy}",
)
async def put_policy(body: PolicyBody, change: ChangeRequest) -> Answer:
    """Set how long inputs, responses and inferences are kept; it applies to those stored
    already, too. One that would delete any of them begins after a grace."""
    lost, warnings = await change.write("policy_set", body, body.reason)
    return await _answer_set(change.request, change.of, warnings, show_would_delete(lost))


@add_policy_route(
    router,
    "POST",
    "preview",
    "/preview",
    response_model=PolicyPreview,
    responses=document_refusals(400, 404, 413, 501),
    summary="What {policy} would delete",
)
async def preview_policy(body: PolicyBody, asking: PreviewRequest) -> Answer:
    """The same as setting it, without setting it; its token lets it begin at once."""
    lost, resolved = await asking.compute(body)
    engine: AsyncEngine = asking.request.app.state.engine
    async with engine.begin() as connection:
        revision = (await policies.find_state(connection, asking.of)).revision
        token = await preview.record_preview(
            connection, asking.of, revision, describe_request(body)
        )
    return Answer(
        PolicyPreview(
            would_delete=show_would_delete(lost),
            grace_seconds=asking.find_grace_seconds(lost),
            token=token,
            warnings=[] if resolved is None else list(resolved.warnings),
        )
    )


@add_policy_route(
    router,
    "DELETE",
    "remove",
    status_code=204,
    response_class=Response,
    responses=document_refusals(404, 412),
    summary="Remove {policy}",
)
async def delete_policy(change: ChangeRequest, why: Annotated[Reason, Query()]) -> Response:
    """The next wider policy applies, or everything is kept; after a grace where that would
    delete something."""
    await change.write("policy_removed", None, why.reason)
    return Response(status_code=204)


@add_policy_route(
    router,
    "DELETE",
    "revoke",
    "/pending",
    status_code=204,
    response_class=Response,
    responses=document_refusals(404, 412),
    summary="Take back {policy} before it begins",
)
async def revoke_policy(
    ledger: LedgerOf, if_match: IfMatch, access: Asking, of: PolicyOf
) -> Response:
    """What waits to begin never does; what is in force stays so."""

    async def build_body(connection: AsyncConnection) -> Body:
        await check_allowed(connection, access, of, lock=True)
        return await policies.describe_revocation(connection, of, expected=if_match)

    whose = {"project_id": of.subject} if of.level == "project" else {}
    model_id = of.subject if of.level == "model" else None
    note = Note(Action.POLICY_REVOKED, model_id, {"level": of.level, **whose})
    await ledger.write("policy_revoked", build_body, actor=access.who, note=note)
    return Response(status_code=204)


async def _answer_set(
    request: Request, of: PolicyOwner, warnings: Sequence[str], lost: WouldDelete
) -> Answer:
    """Return the policy that was just set, as it is now."""
    engine: AsyncEngine = request.app.state.engine
    async with engine.connect() as connection:
        state = await policies.find_state(connection, of)
        newest, *_ = await policies.list_versions(connection, of, limit=1)
    shown = show_state(of, newest, state, warnings=warnings, would_delete=lost)
    return build_answer(shown, state.revision)
