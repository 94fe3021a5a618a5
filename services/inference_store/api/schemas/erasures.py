"""Erasures."""

from typing import Annotated, Any
from uuid import UUID

from pydantic import AliasChoices, Field, model_validator

from inference_store.api.shown import Shown
from inference_store.erasure.estimate.erasure_estimate import ErasureEstimate
from inference_store.erasure.progress import BlockedObject, Erasure
from inference_store.erasure.requests import Subject
from inference_store.query.cql2 import FilterLang

from .across import Models
from .fields import Body, Flag, ShortText, Text
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
        """Return it as the store takes it."""
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
        chosen = [name for name in _ONE_OF if getattr(self, name) is not None]
        if len(chosen) != 1:
            listed = " and ".join(chosen) or "none of them"
            raise ValueError(f"give exactly one of {', '.join(_ONE_OF)}, not {listed}")
        return self


class Deletion(Body):
    """Which inferences to erase, by their ids."""

    inference_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)]
    """Ids, aliases, or `uid:<uuid>`."""


class ErasureRequestAcross(Models, ErasureRequest):
    """What to erase of which models; neither `project_id` nor `model_ids`: of all."""


class ForetoldOfModel(
    Shown, of=ErasureEstimate, instead={"inferences": ("model_id", "inferences")}
):
    """What would go of one model. What legal holds keep is counted in `held` alone."""

    model_id: str


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
    exports: int
    """Exports that name some of it: parts that have it are deleted and written again without it.
    Copies that were downloaded stay where they are."""
    export_ids: list[UUID]
    """The first hundred of them."""
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


class Obstacle(Shown, of=BlockedObject, instead={"erasure": (), "seen_at": ()}):
    """An object that S3 would not let go."""


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
    """max_inferences."""


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


class ShownErasure(
    Shown,
    of=Erasure,
    instead={
        "model": ("model_id", "model_ids"),
        "marked": ("progress",),
        "held": (),
        "table_rows": ("rows",),
        "error": ("obstacles", "not_found", "message", "error"),
        "in_force_at": (),
    },
):
    """One run of deletion."""

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
    progress: Progress
    rows: dict[str, int]
    """Rows that went, by table."""
    obstacles: list[Obstacle]
    """The first hundred."""
    not_found: list[str]
    """In the answer that makes it: those of `inference_ids` that no inference has."""
    message: str | None
    """What else is to be said, such as that nothing matched."""
    decided_by: list[DecidingRule]
    given_up: GivenUp | None
    """What holds kept and is given up; null: nothing is."""


class ErasurePage(Shown):
    """Erasures, the newest first."""

    items: list[ShownErasure]
    next: str | None
