"""Moves of models between projects: who may make one, and which policies decide afterwards."""

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api.schemas.registrations import MoveWarning, RegistrationBody
from inference_store.erasure import policies
from inference_store.erasure.ledger import Body, Note
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Fault, Invalid, NotFound, PreconditionFailed

from .access import Access
from .policies import show_state


async def build_entry(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: RegistrationBody,
    *,
    expected: int | None,
    grace_seconds: float,
) -> Body:
    """Build the ledger's entry of a move, or raise what refuses it."""
    if await access.check_registration(connection, model_id, body.project_id):
        raise NotFound(f"There is no model {model_id!r}.")
    registration = await registrations.get(connection, model_id)
    if expected not in (None, registration.revision):
        raise PreconditionFailed(
            f"The registration has revision {registration.revision}, not {expected}."
        )
    if await policies.is_minimum_undercut(connection, registration, body.project_id):
        access.require_right(Right.OVERRIDE, registration)
        if not body.reason:
            fault = Fault("reason", "say why the model may leave a minimum age behind")
            raise Invalid("Going against a minimum age needs a reason.", faults=[fault])
    return await policies.describe_move(
        connection, registration, body.project_id, grace_seconds=grace_seconds, reason=body.reason
    )


async def warn(connection: AsyncConnection, moved: Registration) -> MoveWarning:
    """Return which policies decide about a model that has just been moved, and from when on."""
    owners = policies.list_owners(moved.model_id, moved.project_id)
    states = (await policies.find_policy_states(connection, owners)).items()
    shown = [
        show_state(owner, version, state, warnings=())
        for owner, state in states
        if (version := state.in_force or state.pending) is not None
    ]
    return MoveWarning(effective_at=moved.moves_at or moved.updated_at, policies=shown)


def build_note(body: Body) -> Note:
    """Build the audit's entry."""
    more = {name: body[name] for name in ("from_project_id", "moves_at", "reason")}
    given_values = {name: value for name, value in more.items() if value is not None}
    return Note(
        Action.MODEL_MOVED, body["model_id"], {"project_id": body["project_id"], **given_values}
    )
