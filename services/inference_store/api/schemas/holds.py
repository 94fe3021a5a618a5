"""Legal holds."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from inference_store.api.shown import Shown
from inference_store.erasure.holds.changes import Claim
from inference_store.erasure.holds.conditions import HoldCount
from inference_store.erasure.holds.hold import Hold, HoldRevision, State
from inference_store.query.cql2 import FilterLang

from .fields import Body, Instant, ShortText, Text
from .links import PageParameters, Parameters


def _filter_schema(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": kind} for kind in ("string", "object", "boolean", "null")]


Reason = Annotated[Text, Field(min_length=1, max_length=2000)]


class HoldBody(Body):
    """What is to be kept, whatever policy, erasure or person says: exactly one of `filter` and
    `inference_ids`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "hallway incident",
                    "reason": "police file 4711/26",
                    "model_id": "hallway-detector",
                    "filter": "camera = 'hallway' AND received_at >= TIMESTAMP("
                    "'2026-11-01T00:00:00Z')",
                    "types": {"camera": "string"},
                    "until": "2027-11-01T00:00:00Z",
                }
            ]
        }
    )

    name: Annotated[ShortText, Field(min_length=1)]
    """For people: what it is about."""
    reason: Reason
    """Why nothing of it may be deleted."""
    model_id: ShortText | None = None
    """The model; left out or null: every model, also those to come."""
    filter: Any = Field(
        default=None,
        description="A filter in CQL2: a string is CQL2-Text, an object CQL2-JSON. What it is TRUE"
        " of is kept, now or later, and what it is NULL of. It may name keys not yet seen.",
        examples=["camera = 'hallway' AND prediction(label = 'person')"],
        json_schema_extra=_filter_schema,
    )
    filter_lang: FilterLang | None = None
    """The filter's language; left out: that of its JSON type."""
    inference_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)] | None = None
    """Ids, aliases or `uid:<uuid>`: every inference that has one of them, also later ones."""
    types: Annotated[dict[ShortText, ShortText], Field(max_length=100)] = Field(default={})
    """Types of metadata keys that the filter names and nothing has yet: `string`, `int` …"""
    until: Instant | None = None
    """When it ends by itself; left out or null: when it is released."""

    @model_validator(mode="after")
    def _one_way(self) -> "HoldBody":
        if (self.filter is None) == (self.inference_ids is None):
            raise ValueError("exactly one of `filter` and `inference_ids` says what is kept")
        if self.types and self.filter is None:
            raise ValueError("`types` are of the keys of a `filter`, and there is none")
        return self


class HoldParameters(PageParameters):
    """Which page of which holds."""

    state: State | None = None
    model_id: ShortText | None = None
    """Those that may keep something of this model, those of every model among them."""


class ReleaseParameters(Parameters):
    """Why it is released."""

    reason: Reason


class ShownHold(
    Shown,
    of=Hold,
    instead={"model": ("model_id",), "until": ("until", "state"), "in_force_at": ()},
):
    """A legal hold; `erased:…` stands for each value that an erasure took."""

    model_id: str | None
    """null: every model, also those to come."""
    filter: str | None
    """As CQL2-Text, every name spelt out; null: it was placed by ids."""
    types: dict[str, str]
    """Types of its keys that nothing had when it was placed or changed: `number`, `string`, `bool`,
    `timestamp`. Repeat them to change the hold."""
    state: State
    """`in_force`; `ended`: `until` has passed; `released`: by a person."""


class ShownClaim(Shown, of=Claim, instead={"model": ("model_id",)}):
    """An inference of the hold that an erasure had claimed before: some of it may be gone."""

    model_id: str | None


class PlacedHold(ShownHold):
    """A hold as it was placed or changed."""

    claimed: int
    """How many inferences and inputs of it erasures had claimed before: for these it may have
    come too late."""
    more: bool
    """Whether there may be more: no more than the first 10,000 claims are looked at."""
    claims: list[ShownClaim]
    """The first hundred of them."""
    warnings: list[str]


class ShownHeld(Shown, of=HoldCount):
    """What a hold keeps of what is stored now."""


class HoldPage(Shown):
    """Legal holds, the newest first."""

    items: list[ShownHold]
    next: str | None


class HoldDocument(Shown):
    """What a hold was; of a release, `reason` says why."""

    name: str | None = None
    reason: str
    model_id: str | None = None
    filter: str | None = None
    inference_ids: list[str] | None = None
    until: datetime | None = None


class HoldChange(Shown, of=HoldRevision):
    """One revision of a hold."""

    document: HoldDocument


class HoldHistory(Shown):
    """Every revision of a hold, the oldest first."""

    items: list[HoldChange]
    next: str | None
