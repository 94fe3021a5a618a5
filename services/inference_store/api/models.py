"""Models: registrations, moves between projects, metadata keys; and projects."""

from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import housekeeping, policies
from inference_store.erasure.ledger_entries import Body as Entry
from inference_store.erasure.ledger_entries import Note
from inference_store.index import key_registry, registrations
from inference_store.index.registrations import Details, Registration
from inference_store.inference.errors import Conflict, Invalid, NotFound, require_revision
from inference_store.inference.field_docs import Body, ShortText, Text
from inference_store.inference.layout import check_id
from inference_store.inference.task_types import TASK_TYPES, OutputMapping, task_type_of

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import IfMatch, Reading
from .fields import InQuery, Page, PageAnswer, PageParameters
from .http import OF_MODEL, ModelId
from .policies import ShownPolicy, show_state
from .routing import Router


def _task_type(name: str) -> str:
    task_type = task_type_of(name)
    if task_type is TASK_TYPES["unknown"] and name != "unknown":
        raise ValueError(f"there is no task type {name!r}; known are {', '.join(TASK_TYPES)}")
    return next(key for key, entry in TASK_TYPES.items() if entry is task_type)


class RegistrationBody(Body):
    """The registration of a model. Fields that are left out are unset. It applies to future
    events."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "Hallway detector",
                    "project_id": "building-7",
                    "task_type": "object_detection",
                    "class_labels": ["person", "dog"],
                }
            ]
        }
    )

    project_id: Annotated[Text, AfterValidator(check_id)] | None = None
    name: ShortText | None = None
    task_type: Annotated[Text, Field(max_length=64), AfterValidator(_task_type)] | None = Field(
        default=None, description=f"One of {', '.join(TASK_TYPES)}, in any common spelling."
    )
    class_labels: Annotated[list[ShortText], Field(max_length=100_000)] = Field(default=[])
    """The names of the classes, in the order of the model's outputs."""
    output_mapping: OutputMapping | None = None
    """Which tensors of the answer are boxes, scores and labels."""
    reason: ShortText | None = None
    """Why it moves; required if it leaves a minimum age behind."""


class PendingMove(Shown):
    """A move that does not apply to retention yet. Moving the model back cancels it."""

    from_project_id: str | None
    """The project that it left, whose policy applies until then."""
    effective_at: datetime


class ShownRegistration(Registration, Shown):
    """A registered model."""

    pending_move: PendingMove | None
    """Set after a move, as long as the policy of the old project still applies."""


class MoveWarning(Shown):
    """The retention policies of a model after a move. They apply to what is stored already, too."""

    effective_at: datetime
    """When they begin to apply. Until then those of the old project do."""
    policies: list[ShownPolicy]
    """The most specific first. What none of them deletes is kept."""


class PutRegistration(ShownRegistration):
    """A model as it was just registered."""

    warning: MoveWarning | None = None
    """Only if it was moved to another project."""


class ModelParameters(PageParameters):
    """Which page of which models."""

    project_id: ShortText | None = None
    """Of this project."""


class ShownProject(registrations.Project, Shown):
    """A project, which registrations name."""


class ShownSeenType(Shown):
    """A type that values of the key were sent as."""

    type: str
    flag: str
    """Empty if the values are indexed as their type; else why they are not, or how they were
    sent."""
    count: int
    first_seen: datetime
    last_seen: datetime
    examples: tuple[str, ...]


class ShownMetadataKey(Shown):
    """A metadata key of a model."""

    name: str
    compared_as: list[str]
    """number, string, bool, timestamp: what its values can be compared as."""
    conflict: bool
    """Whether values were sent as types that cannot be compared with each other."""
    count: int
    types: list[ShownSeenType]


class MetadataKeyPage(Page):
    """Metadata keys, in order of name."""

    items: list[ShownMetadataKey]
    capped: bool
    """Whether the model has reached the limit of indexed keys. Further keys are stored, but not
    indexed."""


router = Router("models")
_NEEDED = Needs(Right.READ, Over.SOME)
_NEW = {"model": PutRegistration, "description": "It is new."}


@router.add("GET /models", _NEEDED, "List models", 404, order="in order of model id")
async def list_models(
    page: InQuery[ModelParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownRegistration]:
    """Registrations, in order of model id."""
    rows = await registrations.page(
        connection,
        limit=page.limit + 1,
        after=page.find_after(str),
        within=access.scope,
        project_id=page.project_id,
    )
    if page.project_id is not None and page.cursor is None and not rows:
        raise NotFound(f"There is no project {page.project_id!r} with models that you may read.")
    return page.answer(
        rows,
        lambda row: ShownRegistration.show(row, pending_move=_show_move(row)),
        attrgetter("model_id"),
    )


@router.add(f"GET {OF_MODEL}", Right.READ, "Read a model")
async def get_model(
    model_id: ModelId, connection: Reading, access: Asking
) -> Answer[ShownRegistration]:
    """A model's registration."""
    return _build_answer(await access.find_model(connection, model_id))


@router.add(f"PUT {OF_MODEL}", Right.ADMIN, "Register a model", 409, also={201: _NEW})
async def put_model(
    model_id: ModelId, body: RegistrationBody, if_match: IfMatch, access: Asking
) -> Answer[PutRegistration]:
    """Register a model, or replace its registration. Another `project_id` moves it, and `warning`
    has the policies there. If they may delete what the present ones keep, the present ones still
    apply for a grace period."""
    if not model_id:
        raise Invalid.of("path.model_id", "it must not be empty")
    try:
        return await _put(access, model_id, body, if_match)
    except Conflict:  # an event registered it, or it was moved meanwhile: check everything again
        return await _put(access, model_id, body, if_match)


@router.add(f"DELETE {OF_MODEL}", Right.ADMIN, "Remove a model", 409, status=204)
async def delete_model(model_id: ModelId, access: Asking) -> Response:
    """Remove a registration that has no inferences, with its retention policy."""

    async def build_body(connection: AsyncConnection) -> Entry:
        await access.find_model(connection, model_id)
        return dict(await housekeeping.describe_removal(connection, model_id))

    note = Note(Action.MODEL_REMOVED, model_id, {})
    await access.ledger.write("model_removed", build_body, actor=access.who, note=note)
    return Response(status_code=204)


@router.add(f"GET {OF_MODEL}/metadata-keys", Right.READ, "List metadata keys")
async def list_keys(
    model_id: ModelId, page: InQuery[PageParameters], connection: Reading, access: Asking
) -> Answer[MetadataKeyPage]:
    """Which metadata keys the model's inferences have: types, counts, examples, conflicts."""
    model = (await access.find_model(connection, model_id)).model
    after = page.find_after(str)
    rows = await key_registry.keys(connection, model, limit=page.limit + 1, after=after)
    items, following = page.cut(rows, attrgetter("name"))
    number = await key_registry.count(connection, model)
    shown = [
        ShownMetadataKey.show(key, compared_as=sorted(key.families))
        for key in items
        if key.types  # else no inference has it any more, and retention removes it
    ]
    capped = number >= access.settings.max_keys_per_model
    return Answer(MetadataKeyPage(items=shown, next=following, capped=capped))


@router.add("GET /projects", _NEEDED, "List projects", order="in order of their ids")
async def list_projects(
    page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownProject]:
    """Projects with models that the caller sees, in order of their ids."""
    rows = await registrations.list_projects(
        connection, limit=page.limit + 1, after=page.find_after(str), within=access.scope
    )
    return page.answer(rows, ShownProject.show, attrgetter("project_id"))


def _build_answer(
    registered: Registration, *, status: int = 200, warning: MoveWarning | None = None
) -> Answer[PutRegistration]:
    more = {} if warning is None else {"warning": warning}
    shown = PutRegistration.show(registered, pending_move=_show_move(registered), **more)
    return Answer(shown, status_code=status, revision=registered.revision)


def _show_move(registered: Registration) -> PendingMove | None:
    at = registered.moves_at
    if at is None or at <= datetime.now(UTC):
        return None
    return PendingMove(from_project_id=registered.left_project_id, effective_at=at)


async def _put(
    access: Access, model_id: str, body: RegistrationBody, expected: int | None
) -> Answer[PutRegistration]:
    """Put the registration, which must have the revision `expected`. Raises Conflict if somebody
    else has put it meanwhile."""
    async with access.engine.connect() as connection:
        current = (await registrations.find_by_ids(connection, [model_id])).get(model_id)
    if current is not None and current.project_id != body.project_id:
        return await _move(access, model_id, body, expected)
    async with access.engine.begin() as connection:
        missing = await access.check_registration(connection, model_id, body.project_id)
        return await _write(connection, access, model_id, body, expected, missing=missing)


async def _write(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: RegistrationBody,
    expected: int | None,
    *,
    missing: bool = False,
    warning: MoveWarning | None = None,
) -> Answer[PutRegistration]:
    """Write the registration.

    If the model was missing when access was checked, and exists by now, nothing is changed or
    moved.
    """
    if not missing:
        current = await registrations.get(connection, model_id)
        if current.project_id != body.project_id:
            detail = f"The model {model_id!r} has just been moved: try again."
            raise Conflict(detail, at="project_id")
    registration, new = await registrations.put(
        connection,
        model_id,
        Details.model_validate(body),
        revision=expected,
        must_be_new=missing,
    )
    action = Action.MODEL_REGISTERED if new else Action.MODEL_CHANGED
    await access.note(connection, action, registration, revision=registration.revision)
    return _build_answer(registration, status=201 if new else 200, warning=warning)


async def _move(
    access: Access, model_id: str, body: RegistrationBody, expected: int | None
) -> Answer[PutRegistration]:
    """After a crash between the ledger and the rest, it has moved, and the caller has no answer."""

    async def build_body(connection: AsyncConnection) -> Entry:
        return await _build_move(connection, access, model_id, body, expected)

    def build_note(entry: Entry) -> Note:
        named = ("project_id", "from_project_id", "moves_at", "reason")
        detail = {n: entry[n] for n in named if n == "project_id" or entry[n] is not None}
        return Note(Action.MODEL_MOVED, model_id, detail)

    await access.ledger.write("model_moved", build_body, actor=access.who, note=build_note)
    async with access.engine.begin() as connection:
        registration = await registrations.get(connection, model_id, lock=True)
        owners = policies.list_owners(model_id, registration.project_id)
        states = [(owner, await policies.find_state(connection, owner)) for owner in owners]
        shown = [
            show_state(owner, version, state, warnings=())
            for owner, state in states
            if (version := state.in_force or state.pending) is not None
        ]
        effective_at = registration.moves_at or registration.updated_at
        warning = MoveWarning(effective_at=effective_at, policies=shown)
        if Details.model_validate(registration) == Details.model_validate(body):
            return _build_answer(registration, warning=warning)
        expected = None if expected is None else expected + 1
        return await _write(connection, access, model_id, body, expected, warning=warning)


async def _build_move(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    body: RegistrationBody,
    expected: int | None,
) -> Entry:
    if await access.check_registration(connection, model_id, body.project_id):
        raise NotFound(f"There is no model {model_id!r}.")
    registration = await registrations.get(connection, model_id)
    require_revision("The registration", registration.revision, expected)
    if await policies.is_minimum_undercut(connection, registration, body.project_id):
        access.require_right(Right.OVERRIDE, registration)
        if not body.reason:
            raise Invalid.of("reason", "say why the model may leave a minimum age behind")
    grace_seconds = access.settings.policy_grace_seconds
    return await policies.describe_move(
        connection, registration, body.project_id, grace_seconds=grace_seconds, reason=body.reason
    )
