"""Erasures."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AliasChoices, Field, model_validator

from inference_store.api.filters import FilterLang
from inference_store.erasure.erasures.chosen import Subject

from .across import Models
from .fields import Body, Flag, ShortText, Shown, Text
from .questions import filter_schema
from .resolved import ResolvedTime

_ONE_OF = ("filter", "inference_ids", "subject")


class AskedSubject(Body):
    """Whom inferences are about: a metadata key with a value."""

    key: Annotated[ShortText, Field(min_length=1, examples=["person_id"])]
    """The key, or the path into a JSON value."""
    type: Annotated[str, Field(max_length=32, examples=["string"])] | None = None
    """string, int, float, bool or timestamp. Left out: every type the key has been seen with."""
    value: Annotated[Text, Field(max_length=4096, examples=["p-1044"])]
    """The value, as text."""

    @property
    def subject(self) -> Subject:
        """As the store takes it."""
        return Subject(self.key, self.type, self.value)


class ErasureRequest(Body):
    """What to erase: exactly one of `filter`, `inference_ids` and `subject`."""

    filter: Any = Field(
        default=None,
        description="A filter in CQL2: a string is CQL2-Text, an object CQL2-JSON. What is stored"
        " and TRUE of it is erased.",
        examples=["data_source = 'hallway-camera-feed' AND frame_number < 100"],
        json_schema_extra=filter_schema,
    )
    filter_lang: FilterLang | None = Field(
        default=None, validation_alias=AliasChoices("filter_lang", "filter-lang")
    )
    """The filter's language; left out: that of its JSON type."""
    inference_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)] | None = None
    """Ids, aliases, or `uid:<uuid>`."""
    subject: AskedSubject | None = None
    """Everything of one subject, dead letters and parked events too."""
    dry_run: Flag = False
    """Whether it is only counted what would go."""
    uids: Flag = False
    """Whether a dry run lists the uids that would go as well, page by page."""
    limit: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 1000
    """Of a list of uids: at most so many in one answer."""
    cursor: Annotated[str, Field(max_length=1024)] | None = None
    """Of a list of uids: the `next` of the answer before."""

    @model_validator(mode="after")
    def _lists_of_dry_runs(self) -> "ErasureRequest":
        if self.uids and not self.dry_run:
            raise ValueError("`uids` lists what would go: give `dry_run` as well")
        if not self.uids and self.model_fields_set & {"limit", "cursor"}:
            raise ValueError("`limit` and `cursor` are of a list of uids: give `uids` as well")
        return self

    @model_validator(mode="after")
    def _exactly_one(self) -> "ErasureRequest":
        given = [name for name in _ONE_OF if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise ValueError(f"give exactly one of {', '.join(_ONE_OF)}, not {said}")
        return self


class Deletion(Body):
    """Which inferences to erase, by their ids."""

    inference_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)]
    """Ids, aliases, or `uid:<uuid>`."""


class ErasureRequestAcross(Models, ErasureRequest):
    """What to erase of which models; neither `project_id` nor `model_ids`: of all."""


class ForetoldOfModel(Shown):
    """What would go of one model. What legal holds keep is counted in `held` alone."""

    model_id: str
    inferences: int
    objects: int
    bytes: int
    """Of the objects whose sizes are known."""
    unknown_sizes: int
    """Inferences whose objects have no known size."""
    dead_letters: int
    parked_events: int
    held: int
    """More of them, inferences, dead letters and parked events, which legal holds keep."""
    undecided: int
    """Inferences that a query by this filter shows and that stay: not all of their metadata or
    predictions is indexed, and what is missing may say otherwise."""
    oldest: datetime | None
    newest: datetime | None
    partial: bool
    """Time was over before all was looked at: there may be more."""


class GoingUid(Shown):
    """An inference that would go."""

    model_id: str
    uid: UUID


class Foretold(ForetoldOfModel):
    """What an erasure would erase; nothing was marked."""

    model_id: str | None  # type: ignore[assignment]
    """Null: several."""
    models: list[ForetoldOfModel]
    """Of each model of which anything would go, is held, or is undecided."""
    not_found: list[str]
    """Those of `inference_ids` that no inference has."""
    uids: list[GoingUid] | None
    """Where they are asked for: a page of what would go, of each model in order of time."""
    next: str | None
    """The `cursor` of the next page; null: there is none."""
    resolved: list[ResolvedTime] | None = None
    """What the filter's relative times were taken for; where it has some."""


class Progress(Shown):
    """How far an erasure is."""

    marked: int
    """What was found and hidden from every query."""
    erased: int
    held: int
    """What legal holds keep, which is shown again."""
    left: int
    per_second: float | None
    """Inferences erased a second, on average; while marking: marked."""
    seconds_left: float | None
    """At this rate; null while it is not known how much there is."""


class Obstacle(Shown):
    """An object that S3 would not let go."""

    storage_key: str
    code: str
    message: str
    retry_at: datetime | None
    """When its lock ends; null: nobody says, and every run tries again."""


class DecidingRule(Shown):
    """A rule, or a limit, of one version of a policy."""

    level: str
    """model, project or default."""
    subject: str
    """The model's or the project's id; of the default empty."""
    version: int
    rule: int | None = None
    """Its place in the policy, from 0."""
    limit: str | None = None
    """max_inferences or max_bytes."""


class KeptByHold(Shown):
    """How many inferences, or events set aside, a legal hold keeps."""

    hold: UUID
    inferences: int


class GivenUp(Shown):
    """What stays although it was asked for."""

    by: str | None
    """Who gave it up."""
    held: list[KeptByHold]
    """What has been given up so far, by the hold that kept it."""


class GivingUp(Body):
    """Why what holds keep is given up."""

    reason: Annotated[ShortText, Field(min_length=1, examples=["the case goes on for years"])]
    """For the audit."""


class ShownErasure(Shown):
    """One run of deletion."""

    id: UUID
    model_id: str | None
    """Null: of several, in `model_ids`."""
    model_ids: list[str]
    cause: str
    """policy, request, expired_arrival, erased_again or orphans."""
    scope: str
    """`input` (the datum and what else of the request is kept), `response`, `inference`
    (everything) or `object` (objects of no inference)."""
    state: str
    """pending, marking, deleting_objects, verifying, deleting_rows, certifying, certified, deleted,
    failed, partly_held, giving_up, cancelling or cancelled."""
    run: UUID | None
    asked: dict[str, Any] | None
    """`filter`, `inference_ids`, `subject` or `report` (a reconciliation), as it was asked; null:
    it was marked as it was made. When it is over the subject's value is forgotten, and of ids their
    number stays (`ids`)."""
    requested_at: datetime
    requested_by: str | None
    begun_at: datetime | None
    deleting_since: datetime | None
    """From here on it cannot be cancelled."""
    finished_at: datetime | None
    retry_at: datetime | None
    progress: Progress
    inferences: int
    objects: int
    versions: int
    """Versions and delete markers that went, where the bucket keeps them."""
    bytes: int
    """Of the objects that went."""
    rows: dict[str, int]
    """Rows that went, by table."""
    oldest: datetime | None
    """When the oldest and the newest of what went were received."""
    newest: datetime | None
    obstacles: list[Obstacle]
    """The first hundred."""
    not_found: list[str]
    """In the answer that makes it: those of `inference_ids` that no inference has."""
    message: str | None
    """What else is to be said, such as that nothing matched."""
    error: str | None
    certificate: int | None
    """Number of its newest certificate: `GET /v1/certificates/{number}`."""
    decided_by: list[DecidingRule]
    """Of a policy's run: the rules and limits that let it expire."""
    given_up: GivenUp | None
    """What holds kept and is given up; null: nothing is."""


class ErasurePage(Shown):
    """Erasures, the newest first."""

    items: list[ShownErasure]
    next: str | None
