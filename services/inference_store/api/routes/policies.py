"""Retention policies of a model, of a project, and of all: the same routes three times."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Access, Asking, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading, Settings, querying
from inference_store.api.policies import build_answer, check_allowed, format_policy, format_version
from inference_store.api.policy_changes import (
    build_entry,
    describe_request,
    estimate_policy,
    read_trees,
)
from inference_store.api.policy_changes import format_would_delete as shown_lost
from inference_store.api.policy_levels import POLICY_LEVELS, PolicyLevel
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.policies import (
    PolicyBody,
    PolicyHistory,
    PolicyPreview,
    Reason,
    ShownPolicy,
)
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body, Ledger, Note
from inference_store.erasure.policies import Of, Resolved, Version
from inference_store.erasure.preview import previews
from inference_store.erasure.preview.preview import WouldDelete
from inference_store.platform.settings import ApiSettings

Route = TypeVar("Route", bound=Callable[..., Any])
router = make_router("retention")

_SAVED: Any = {"rules": {"__all__": {"saved"}}}


def _route(
    place: PolicyLevel, method: str, action: str, more: str = "", **said: Any
) -> Callable[[Route], Route]:
    over = place.read if said.pop("right") is Right.READ else place.write
    right = Right.READ if method == "GET" else Right.ADMIN
    return router.api_route(
        f"{place.path}/retention-policy{more}",
        methods=[method],
        name=f"{action}_{place.level}_policy",
        openapi_extra=needs(right, over),
        **said,
    )


@dataclass(frozen=True, slots=True)
class _Preview:
    """A preview of what a policy would delete: whose policy, and who asks."""

    request: Request
    to: ApiSettings
    access: Access
    of: Of

    async def compute(self, body: PolicyBody | None) -> tuple[WouldDelete, Resolved | None]:
        """Return what it would delete today, and the policy as it is stored.

        `body` None: if there were none.
        """
        trees = [] if body is None else await read_trees(body)
        seconds = self.to.policy_preview_seconds
        async with querying(self.request, self.access) as connection:
            return await estimate_policy(
                connection, self.access, self.of, body, trees, seconds=seconds
            )

    def grace(self, lost: WouldDelete) -> float:
        """Return how many seconds it waits before it begins."""
        return 0.0 if lost.harmless else self.to.policy_grace_seconds


@dataclass(frozen=True, slots=True)
class _Change(_Preview):
    """A change of a policy. `expected`: the revision that it must have now."""

    ledger: Ledger
    expected: int | None

    async def write(
        self,
        kind: str,
        lost: WouldDelete,
        resolved: Resolved | None,
        body: PolicyBody | None,
        reason: str | None,
    ) -> None:
        """Write it to the ledger before it takes effect. Raises what refuses it."""
        said = partial(
            build_entry,
            access=self.access,
            of=self.of,
            resolved=resolved,
            body=body,
            expected=self.expected,
            grace_seconds=self.grace(lost),
            reason=reason,
            unmeasured=lost.unmeasured if lost.tightened else 0,
        )
        await self.ledger.write(kind, said, actor=self.access.who, note=_build_note)


def _add_routes(place: PolicyLevel) -> None:
    """Add the routes of one level."""

    async def looking(
        request: Request, to: Settings, access: Asking, of: Annotated[Of, Depends(place.of)]
    ) -> _Preview:
        return _Preview(request, to, access, of)

    async def changing(
        look: Annotated[_Preview, Depends(looking)], ledger: LedgerOf, if_match: IfMatch
    ) -> _Change:
        return _Change(look.request, look.to, look.access, look.of, ledger, if_match)

    @_route(
        place,
        "GET",
        "get",
        right=Right.READ,
        response_model=ShownPolicy,
        responses=document_refusals(404),
        summary=f"Read {place.words}",
    )
    async def get_policy(
        connection: Reading, access: Asking, of: Annotated[Of, Depends(place.of)]
    ) -> Answer:
        """The policy in force, and what waits to begin; 404 where there is neither."""
        await check_allowed(connection, access, of)
        return await _answer(connection, of)

    @_route(
        place,
        "GET",
        "history_of",
        "/history",
        right=Right.READ,
        response_model=PolicyHistory,
        responses=document_refusals(404),
        summary=f"Versions of {place.words}",
    )
    async def get_history(
        page: Annotated[PageParameters, Query()],
        connection: Reading,
        access: Asking,
        of: Annotated[Of, Depends(place.of)],
    ) -> Answer:
        """Who set it, when, and what it was before: the newest first."""
        await check_allowed(connection, access, of)
        before = cursors.decode_one(page.cursor, int)
        found = await policies.history(connection, of, before=before, limit=page.limit + 1)
        items, following = cursors.cut_page(found, page.limit, lambda each: each.revision)
        standing = await policies.standing(connection, of)
        return Answer(
            {"items": [format_version(each, standing) for each in items], "next": following}
        )

    @_route(
        place,
        "PUT",
        "set",
        right=Right.ADMIN,
        response_model=ShownPolicy,
        responses=document_refusals(400, 404, 412, 413, 501),
        summary=f"Set {place.words}",
    )
    async def put_policy(body: PolicyBody, change: Annotated[_Change, Depends(changing)]) -> Answer:
        """Set how long inputs, responses and inferences are kept; it applies to those stored
        already, too. One that would delete any of them begins after a grace."""
        lost, resolved = await change.compute(body)
        await change.write("policy_set", lost, resolved, body, body.reason)
        warnings = () if resolved is None else resolved.warnings
        return await _answer_set(change.request, change.of, warnings, shown_lost(lost))

    @_route(
        place,
        "POST",
        "preview",
        "/preview",
        right=Right.ADMIN,
        response_model=PolicyPreview,
        responses=document_refusals(400, 404, 413, 501),
        summary=f"What {place.words} would delete",
    )
    async def preview_policy(
        body: PolicyBody, asking: Annotated[_Preview, Depends(looking)]
    ) -> Answer:
        """The same as setting it, without setting it; its token lets it begin at once."""
        lost, resolved = await asking.compute(body)
        engine: AsyncEngine = asking.request.app.state.engine
        async with engine.begin() as connection:
            revision = (await policies.standing(connection, asking.of)).revision
            token = await previews.remember(connection, asking.of, revision, describe_request(body))
        warnings = [] if resolved is None else list(resolved.warnings)
        told = {"grace_seconds": asking.grace(lost), "token": token, "warnings": warnings}
        return Answer({"would_delete": shown_lost(lost), **told})

    @_route(
        place,
        "DELETE",
        "remove",
        right=Right.ADMIN,
        status_code=204,
        response_class=Response,
        responses=document_refusals(404, 412),
        summary=f"Remove {place.words}",
    )
    async def delete_policy(
        change: Annotated[_Change, Depends(changing)], why: Annotated[Reason, Query()]
    ) -> Response:
        """The next wider policy applies, or everything is kept; after a grace where that would
        delete something."""
        lost, _ = await change.compute(None)
        await change.write("policy_removed", lost, None, None, why.reason)
        return Response(status_code=204)

    @_route(
        place,
        "DELETE",
        "revoke",
        "/pending",
        right=Right.ADMIN,
        status_code=204,
        response_class=Response,
        responses=document_refusals(404, 412),
        summary=f"Take back {place.words} before it begins",
    )
    async def revoke_policy(
        ledger: LedgerOf,
        if_match: IfMatch,
        access: Asking,
        of: Annotated[Of, Depends(place.of)],
    ) -> Response:
        """What waits to begin never does; what is in force stays so."""

        async def said(connection: AsyncConnection) -> Body:
            await check_allowed(connection, access, of, lock=True)
            return await policies.revoking(connection, of, expected=if_match)

        whose = {"project_id": of.subject} if of.level == "project" else {}
        model_id = of.subject if of.level == "model" else None
        note = Note(Action.POLICY_REVOKED, model_id, {"level": of.level, **whose})
        await ledger.write("policy_revoked", said, actor=access.who, note=note)
        return Response(status_code=204)


for _each in POLICY_LEVELS:
    _add_routes(_each)


async def _answer_set(
    request: Request, of: Of, warnings: tuple[str, ...], lost: dict[str, Any]
) -> Answer:
    """Return the policy that was just set, as it is now."""
    engine: AsyncEngine = request.app.state.engine
    async with engine.connect() as connection:
        standing = await policies.standing(connection, of)
        whose = await format_policy(connection, of, warnings=warnings)
        newest, *_ = await policies.history(connection, of, limit=1)
        body = whose | format_version(newest, standing) | {"would_delete": lost}
        return build_answer(body, standing.revision)


async def _answer(connection: AsyncConnection, of: Of, *, warnings: tuple[str, ...] = ()) -> Answer:
    body = await format_policy(connection, of, warnings=warnings)
    standing = await policies.standing(connection, of)
    return build_answer(body, standing.revision)


def _build_note(found: Version) -> Note:
    """Build the audit's entry."""
    of, policy = found.of, found.policy
    action = Action.POLICY_REMOVED if policy is None else Action.POLICY_SET
    rules = {} if policy is None else policy.model_dump(exclude_none=True, exclude=_SAVED)
    began = found.effective_at.isoformat()
    told = {"level": of.level, "revision": found.revision, "effective_at": began}
    whose = {"project_id": of.subject} if of.level == "project" else {}
    why = {} if found.reason is None else {"reason": found.reason}
    return Note(action, of.subject if of.level == "model" else None, told | whose | why | rules)
