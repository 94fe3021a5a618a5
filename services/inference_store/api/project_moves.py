"""Moves of models between projects: what one would delete, who may make it, when it begins."""

import json
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.schemas.registrations import RegistrationBody
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body, Note
from inference_store.erasure.policies import PolicyOwner
from inference_store.erasure.preview import preview, previews
from inference_store.erasure.preview.losses import Preview
from inference_store.export.ledger.member_lists import MemberLists
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Fault, Invalid, NotFound, PreconditionFailed

from .access import Access
from .policy_changes import require_sizes


def is_move(registration: Registration | None, body: RegistrationBody) -> bool:
    """Return whether the request moves the model, or lets a waiting move begin now."""
    if registration is None:
        return False
    return registration.project_id != body.project_id or (
        registration.moves_at is not None and body.effective == "now"
    )


async def estimate_move(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    project_id: str | None,
    *,
    seconds: float,
) -> Preview:
    """Return what the move would delete today. Raises NotFound, Forbidden."""
    registration = await _check_move(connection, access, model_id, project_id, lock=False)
    return await preview.preview_move(
        connection, registration, project_id, lists=MemberLists(), seconds=seconds
    )


async def build_entry(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: RegistrationBody,
    *,
    expected: int | None,
    grace_seconds: float,
    unmeasured: int = 0,
) -> Body:
    """Build the ledger's entry of a move, or raise what refuses it.

    `unmeasured`: how many inferences of unknown size a limit by bytes would apply to.
    """
    registration = await _check_move(connection, access, model_id, body.project_id, lock=True)
    if expected not in (None, registration.revision):
        raise PreconditionFailed(
            f"The registration has revision {registration.revision}, not {expected}."
        )
    if await policies.is_minimum_undercut(connection, registration, body.project_id):
        access.require_right(Right.OVERRIDE, registration)
        if not body.reason:
            fault = Fault("reason", "say why the model may leave a minimum age behind")
            raise Invalid("Going against a minimum age needs a reason.", faults=[fault])
    if body.effective == "now":
        await _require_preview(connection, registration, body)
        require_sizes(unmeasured)
        grace_seconds = 0.0
    return await policies.describe_move(
        connection, registration, body.project_id, grace_seconds=grace_seconds, reason=body.reason
    )


async def make_token(
    connection: AsyncConnection, access: Access, model_id: str, project_id: str | None
) -> UUID:
    """Return a token that lets this move begin at once, while neither the model nor a policy of it
    changes."""
    registration = await _check_move(connection, access, model_id, project_id, lock=False)
    description = await _describe_move(connection, registration, project_id)
    return await previews.record_preview(
        connection, PolicyOwner("model", model_id), registration.revision, description
    )


def build_note(body: Body) -> Note:
    """Build the audit's entry."""
    more = {name: body[name] for name in ("from_project_id", "moves_at", "reason")}
    given_values = {name: value for name, value in more.items() if value is not None}
    return Note(
        Action.MODEL_MOVED, body["model_id"], {"project_id": body["project_id"], **given_values}
    )


async def _check_move(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    project_id: str | None,
    *,
    lock: bool,
) -> Registration:
    if await access.check_registration(connection, model_id, project_id, lock=lock):
        raise NotFound(f"There is no model {model_id!r}.")
    return await registrations.get(connection, model_id)


async def _require_preview(
    connection: AsyncConnection, registration: Registration, body: RegistrationBody
) -> None:
    if body.token is None:
        fault = Fault("token", "give the `make_token` that the preview of this move answered")
        raise Invalid("A move begins at once only where it was previewed.", faults=[fault])
    description = await _describe_move(connection, registration, body.project_id)
    owner = PolicyOwner("model", registration.model_id)
    if not await previews.is_preview_of(
        connection, body.token, owner, registration.revision, description
    ):
        raise PreconditionFailed(
            "the token is of another move or older than an hour, or the model or a policy was"
            " changed since: preview it again"
        )


async def _describe_move(
    connection: AsyncConnection, registration: Registration, project_id: str | None
) -> str:
    """Describe the move and the policies that were read: a token is bound to this."""
    deciding_id = await policies.find_deciding_project(connection, registration)
    owners = dict.fromkeys(
        (
            *policies.list_owners(registration.model_id, deciding_id),
            *policies.list_owners(registration.model_id, project_id),
        )
    )
    states = await policies.find_policy_states(connection, owners)
    revisions: list[Any] = [[str(owner), state.revision] for owner, state in states.items()]
    return json.dumps({"from": deciding_id, "to": project_id, "policies": revisions})
