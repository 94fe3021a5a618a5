"""The rights of callers, and grants of them for models. `RIGHTS` is the one list."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from inference_store.inference.field_docs import DocumentedModel
from inference_store.platform.settings import RoleSettings, WrongSetting, sentences


class Right(StrEnum):
    """One thing that a caller may do."""

    READ = "read"
    READ_INPUTS = "read_inputs"
    ANNOTATE = "annotate"
    EXPORT = "export"
    DELETE = "delete"
    HOLD = "hold"
    ADMIN = "admin"
    OVERRIDE = "override"


RIGHTS: Final[dict[Right, str]] = {
    Right.READ: "See the model, its inferences, metadata and predictions. Without it the model"
    " does not exist for the caller, whatever other rights were granted.",
    Right.READ_INPUTS: "Read what was sent: the data and metadata blobs, thumbnails, presigned"
    " links, the bytes of dead letters.",
    Right.ANNOTATE: "Tag inferences; add, change and remove their metadata; save, change and"
    " delete views for the model's project.",
    Right.EXPORT: "Export inferences: stream all that match, or have them written to the bucket as"
    " files, or sent to a model again; see, download and cancel the exports of others.",
    Right.DELETE: "Erase inferences.",
    Right.HOLD: "Place and lift legal holds.",
    Right.ADMIN: "Register models, set retention policies, decide on dead letters and parked"
    " events, see the audit; over everything: make and revoke keys.",
    Right.OVERRIDE: "Override a safeguard, where a route offers it.",
}
Role = Literal["reader", "analyst", "owner"]
ROLES: Final[dict[Role, frozenset[Right]]] = {
    "reader": frozenset({Right.READ}),
    "analyst": frozenset({Right.READ, Right.READ_INPUTS, Right.ANNOTATE, Right.EXPORT}),
    "owner": frozenset(Right),
}


def _storable(name: str) -> str:
    if not name or "\0" in name or any("\ud800" <= character <= "\udfff" for character in name):
        raise ValueError("it must not be empty, nor contain NUL or a lone surrogate")
    return name


_Id = Annotated[str, Field(max_length=256), AfterValidator(_storable)]


class Grant(DocumentedModel):
    """Rights over everything, over the models of a project, or over one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rights: Annotated[tuple[Right, ...], Field(max_length=len(Right))] = ()
    """What may be done."""
    role: Role | None = None
    """A bundle of rights; those of `rights` are added to it."""
    project_id: _Id | None = None
    """Only with the models of this project."""
    model_id: _Id | None = None
    """Only with this model."""

    @model_validator(mode="after")
    def _gives_something(self) -> Self:
        if not self.held:
            raise ValueError("it grants nothing: give a `role` or `rights`")
        if self.project_id is not None and self.model_id is not None:
            raise ValueError("give `project_id` or `model_id`, not both")
        return self

    @property
    def held(self) -> frozenset[Right]:
        """Every right that the grant gives."""
        return frozenset(self.rights) | (ROLES[self.role] if self.role else frozenset())

    @property
    def expanded(self) -> "Grant":
        """The grant with its rights instead of its role: a stored grant does not change when a role
        does."""
        rights = tuple(right for right in Right if right in self.held)
        return Grant(rights=rights, project_id=self.project_id, model_id=self.model_id)

    def includes(self, other: "Grant") -> bool:
        """Return whether the grant covers the other's scope."""
        everything = self.project_id is None and self.model_id is None
        return everything or (self.project_id, self.model_id) == (other.project_id, other.model_id)


Grants = Annotated[tuple[Grant, ...], Field(max_length=100)]
OWNER: Final = (Grant(rights=tuple(Right)),)


@dataclass(frozen=True, slots=True)
class ScopePart:
    """The models of these projects, and these models."""

    projects: frozenset[str]
    models: frozenset[str]


@dataclass(frozen=True, slots=True)
class AccessScope:
    """Models that are in all parts; everything if there are no parts."""

    parts: tuple[ScopePart, ...] = ()

    @property
    def is_everything(self) -> bool:
        """True if it is unlimited, and includes what belongs to no model."""
        return not self.parts

    @property
    def is_nothing(self) -> bool:
        """True if it cannot contain a model."""
        return any(not part.projects and not part.models for part in self.parts)

    def __and__(self, other: "AccessScope") -> "AccessScope":
        return AccessScope(tuple(dict.fromkeys((*self.parts, *other.parts))))

    def settled(self, models_of: Mapping[str, frozenset[str]]) -> "AccessScope":
        """Return the scope with the models that its projects have now instead of the projects."""
        nothing: frozenset[str] = frozenset()
        return AccessScope(
            tuple(
                ScopePart(
                    nothing,
                    part.models.union(
                        *(models_of.get(project, nothing) for project in part.projects)
                    ),
                )
                for part in self.parts
            )
        )

    def has(self, model_id: str, project_id: str | None) -> bool:
        """Return whether a model is in the scope."""
        return all(model_id in part.models or project_id in part.projects for part in self.parts)

    def has_project(self, project_id: str | None) -> bool:
        """Return whether every model of a project is in the scope, including future ones."""
        return all(project_id in part.projects for part in self.parts)


EVERYTHING = AccessScope()


@dataclass(frozen=True, slots=True)
class Caller:
    """`name` is how the audit calls them: `key:<id>`, `oidc:<subject>`, `token`, `anyone`, `link`
    (anyone with a signed link to one blob)."""

    name: str
    grants: tuple[Grant, ...]
    expires_at: datetime | None = None
    """When the caller's key expires: no key that the caller makes or rotates outlives it. None: no
    limit."""
    display_name: str | None = None
    """The name of the caller's key for people."""

    @property
    def projects(self) -> frozenset[str]:
        """The projects that any grant covers."""
        return frozenset(grant.project_id for grant in self.grants if grant.project_id is not None)

    def scope(self, right: Right) -> AccessScope:
        """Return the models that a right was granted for."""
        giving = [grant for grant in self.grants if right in grant.held]
        if any(grant.project_id is None and grant.model_id is None for grant in giving):
            return EVERYTHING
        projects = frozenset(grant.project_id for grant in giving if grant.project_id is not None)
        models = frozenset(grant.model_id for grant in giving if grant.model_id is not None)
        return AccessScope((ScopePart(projects, models),))

    def lacks(self, grants: tuple[Grant, ...]) -> list[Right]:
        """Return the rights in these grants that the caller does not have, and so may not give."""
        return [
            right
            for right in Right
            for grant in grants
            if right in grant.held
            and not any(right in own.held and own.includes(grant) for own in self.grants)
        ]

    def outlived_by(self, expires_at: datetime | None) -> bool:
        """Return whether a key that expires then (None: never) would outlive the caller's own."""
        bound = self.expires_at
        return bound is not None and (expires_at is None or expires_at > bound)


# The callers if access control is off, and with the token of the settings.
ANYONE = Caller("anyone", OWNER)
TOKEN = Caller("token", OWNER)


def read_roles(settings: RoleSettings) -> dict[str, tuple[Grant, ...]]:
    """Return the grants of each role. Raise WrongSetting, with a line for each that is wrong."""
    try:
        return TypeAdapter(dict[str, Grants]).validate_python(settings.oidc_roles)
    except ValidationError as wrong:
        raise WrongSetting("\n".join(sentences(wrong, "oidc_roles"))) from None


# The actions of the audit, and their actors. `ACTIONS` is the one list.


class Action(StrEnum):
    """What was done."""

    MODEL_REGISTERED = "model_registered"
    MODEL_CHANGED = "model_changed"
    MODEL_MOVED = "model_moved"
    MODEL_REMOVED = "model_removed"
    POLICY_SET = "policy_set"
    POLICY_REMOVED = "policy_removed"
    POLICY_REVOKED = "policy_revoked"
    RETENTION_REQUESTED = "retention_requested"
    HOLD_PLACED = "hold_placed"
    HOLD_CHANGED = "hold_changed"
    HOLD_RELEASED = "hold_released"
    RECONCILIATION_REQUESTED = "reconciliation_requested"
    METADATA_CHANGED = "metadata_changed"
    GROUND_TRUTH_CHANGED = "ground_truth_changed"
    INFERENCE_ERASED = "inference_erased"
    ERASURE_REQUESTED = "erasure_requested"
    ERASURE_CANCELLED = "erasure_cancelled"
    ERASURE_REST_GIVEN_UP = "erasure_rest_given_up"
    DATA_READ = "data_read"
    METADATA_READ = "metadata_read"
    LINKS_MADE = "links_made"
    THUMBNAILS_READ = "thumbnails_read"
    EXPORT_REQUESTED = "export_requested"
    EXPORT_CANCELLED = "export_cancelled"
    EXPORT_READ = "export_read"
    REPLAY_REQUESTED = "replay_requested"
    REPLAY_CANCELLED = "replay_cancelled"
    DEAD_LETTER_READ = "dead_letter_read"
    DEAD_LETTER_REDRIVEN = "dead_letter_redriven"
    DEAD_LETTERS_REDRIVEN = "dead_letters_redriven"
    DEAD_LETTER_DISCARDED = "dead_letter_discarded"
    PARKED_RETRIED = "parked_retried"
    PARKED_DISCARDED = "parked_discarded"
    KEY_CREATED = "key_created"
    KEY_ROTATED = "key_rotated"
    KEY_REVOKED = "key_revoked"
    KEY_CONFIRMED = "key_confirmed"
    VIEW_SAVED = "view_saved"
    VIEW_CHANGED = "view_changed"
    VIEW_DELETED = "view_deleted"
    SESSION_STARTED = "session_started"
    SESSION_ENDED = "session_ended"
    AUDIT_VALUES_TAKEN = "audit_values_taken"
    CERTIFICATES_BEGUN_ANEW = "certificates_begun_anew"
    LIMIT_LIFTED = "limit_lifted"


ACTIONS: Final[dict[Action, str]] = {
    Action.MODEL_REGISTERED: "A model was registered through the api.",
    Action.MODEL_CHANGED: "A model's registration was replaced.",
    Action.MODEL_MOVED: "A model was moved to another project; `detail` says from when it counts.",
    Action.MODEL_REMOVED: "A registration was removed.",
    Action.POLICY_SET: "A retention policy was set; `detail` has its rules.",
    Action.POLICY_REMOVED: "A retention policy was removed.",
    Action.POLICY_REVOKED: "A pending retention policy was withdrawn.",
    Action.RETENTION_REQUESTED: "A retention run was requested.",
    Action.HOLD_PLACED: "A legal hold was placed; `detail` has its id.",
    Action.HOLD_CHANGED: "A legal hold was replaced by another one, under its id.",
    Action.HOLD_RELEASED: "A legal hold was released; `detail` says why.",
    Action.RECONCILIATION_REQUESTED: "A comparison of bucket and index was requested, or a repair.",
    Action.METADATA_CHANGED: "Metadata of an inference, such as tags, were changed.",
    Action.GROUND_TRUTH_CHANGED: "Ground truth was set or deleted; `detail` has its source.",
    Action.INFERENCE_ERASED: "The erasure of an id was requested; a row for each inference.",
    Action.ERASURE_REQUESTED: "An erasure by a filter, ids or a subject was requested.",
    Action.ERASURE_CANCELLED: "An erasure was cancelled before it deleted anything.",
    Action.ERASURE_REST_GIVEN_UP: "What holds keep of an erasure was given up; `detail` says why.",
    Action.DATA_READ: "A data blob was read through the api.",
    Action.METADATA_READ: "A metadata blob, which may hold the request, was read.",
    Action.LINKS_MADE: "Presigned links to an inference's blobs were given out.",
    Action.THUMBNAILS_READ: "Thumbnails of inputs were read; `detail` lists whose.",
    Action.EXPORT_REQUESTED: "An export was requested; `detail` has its id, and its `blobs`.",
    Action.EXPORT_CANCELLED: "An export was cancelled, or its parts were deleted.",
    Action.EXPORT_READ: "Links to parts of an export were given out, or one was downloaded.",
    Action.REPLAY_REQUESTED: "Inferences are sent again; `detail` has the id, and the model `to`.",
    Action.REPLAY_CANCELLED: "A replay was cancelled.",
    Action.DEAD_LETTER_READ: "The bytes of a dead letter were read.",
    Action.DEAD_LETTER_REDRIVEN: "A dead letter was redriven.",
    Action.DEAD_LETTERS_REDRIVEN: "Several were; `detail` says which were chosen, and how many.",
    Action.DEAD_LETTER_DISCARDED: "A dead letter was discarded, with the reason.",
    Action.PARKED_RETRIED: "Parked events were made due; `detail` says which, and how many.",
    Action.PARKED_DISCARDED: "A parked event became a discarded dead letter, with the reason.",
    Action.KEY_CREATED: "An API key was made.",
    Action.KEY_ROTATED: "An API key got a new text.",
    Action.KEY_REVOKED: "An API key was revoked.",
    Action.KEY_CONFIRMED: "A key that only a restored backup had was confirmed.",
    Action.VIEW_SAVED: "A view of a model was saved; `detail` has its id.",
    Action.VIEW_CHANGED: "A saved view was changed.",
    Action.VIEW_DELETED: "A saved view was deleted.",
    Action.SESSION_STARTED: "Somebody signed in to the console.",
    Action.SESSION_ENDED: "Somebody signed out of the console.",
    Action.AUDIT_VALUES_TAKEN: "An erasure took the values of entries; `detail` lists them.",
    Action.CERTIFICATES_BEGUN_ANEW: "A key went on with certificates that no key before it signed.",
    Action.LIMIT_LIFTED: "Ingesters that halted were resumed; `detail` says until when.",
}


@dataclass(frozen=True, slots=True)
class Who:
    """The actor of an action, and the client's address, which is None on the command line."""

    actor: str
    client: str | None
