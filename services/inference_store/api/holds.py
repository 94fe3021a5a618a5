"""Legal holds: placed, read, changed, released."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Final
from uuid import UUID, uuid4

from pydantic import ConfigDict, Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure import holds
from inference_store.erasure.ledger_entries import Body as Entry
from inference_store.erasure.ledger_entries import Note
from inference_store.erasure.losses import count_held
from inference_store.index import model_numbers
from inference_store.inference.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    require_revision,
)
from inference_store.inference.field_docs import Body, Instant, ShortText, Text, WrongField
from inference_store.query.cql2 import Clock
from inference_store.query.cql2.tree import Node

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .conditions import BodyLang, Ids, filter_field, read_filter
from .dependencies import IfMatch, Querying, Reading
from .fields import InQuery, PageAnswer, PageParameters, Parameters, by_time
from .routing import Router

_Reason = Annotated[Text, Field(min_length=1, max_length=2000)]


class HoldBody(Body):
    """What to keep, whatever a policy, an erasure or a person says: exactly one of `filter` and
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
    """What the hold is about, for people."""
    reason: _Reason
    """Why nothing of it may be deleted."""
    model_id: ShortText | None = None
    """The model; left out or null for every model, including future ones."""
    filter: Any = filter_field(
        "Present and future inferences for which it is TRUE or NULL are kept. It may name keys that"
        " no inference has yet.",
        "camera = 'hallway' AND prediction(label = 'person')",
    )
    filter_lang: BodyLang = None
    inference_ids: Ids | None = None
    """Ids, aliases or `uid:<uuid>`: every inference that has one of them, also later ones."""
    types: Annotated[dict[ShortText, ShortText], Field(max_length=100)] = Field(default={})
    """Types of metadata keys in the filter that no inference has yet: `string`, `int` …"""
    until: Instant | None = None
    """When it ends by itself; left out or null: only when it is released."""

    @model_validator(mode="after")
    def _one_way(self) -> "HoldBody":
        if (self.filter is None) == (self.inference_ids is None):
            wrong = "filter" if self.filter is None else "inference_ids"
            raise WrongField(wrong, "give exactly one of `filter` and `inference_ids`")
        if self.types and self.filter is None:
            raise WrongField("types", "it declares the keys of a `filter`: give a `filter` too")
        return self


class HoldParameters(PageParameters):
    """Which page of which holds."""

    state: holds.State | None = None
    model_id: ShortText | None = None
    """Holds that may keep something of this model, including those of every model."""


class ReleaseParameters(Parameters):
    """Why it is released."""

    reason: _Reason


class ShownHold(holds.Hold, Shown):
    """A legal hold; `erased:…` stands for each value that an erasure removed."""

    model_id: str | None
    """Null for every model, including future ones."""
    filter: str | None  # type: ignore[assignment]
    """In CQL2-Text, with every name spelled out; null if it was placed by ids."""
    state: holds.State
    """`in_force`; `ended`: `until` has passed; `released`: by a person."""
    types: dict[str, str]
    """Types of its keys that nothing had when it was placed or changed: `number`, `string`, `bool`,
    `timestamp`. Repeat them to change the hold."""


class ShownClaim(holds.Claim, Shown):
    """An inference of the hold that an erasure had claimed before: some of it may be gone."""

    model_id: str | None


class PlacedHold(ShownHold):
    """A hold as it was placed or changed."""

    claimed: int
    """How many of its inferences and inputs erasures had claimed before. For these it may be too
    late."""
    more: bool
    """Whether there may be more: only the first 10,000 claims are checked."""
    claims: list[ShownClaim]
    """The first hundred of them."""
    warnings: list[str]


class HoldCount(Shown):
    """What a hold keeps of what is stored now."""

    inferences: int
    oldest: datetime | None
    """When the oldest of them was received."""
    newest: datetime | None
    partial: bool
    """Whether time ran out before everything was counted."""


class HoldDocument(Shown):
    """A hold as of this revision; `reason` of a release says why."""

    name: str | None = None
    reason: str
    model_id: str | None = None
    filter: str | None = None
    inference_ids: list[str] | None = None
    until: datetime | None = None


class HoldChange(holds.HoldRevision, Shown):
    """One revision of a hold."""

    document: HoldDocument  # type: ignore[assignment]


# A hold with a moving time range would release inferences; one that stood still would hold less
# than meant.
_FIXED_CLOCK: Final = Clock(
    instead="a hold keeps the same for as long as it stands. Write the time itself, as in"
    " TIMESTAMP('2026-11-01T00:00:00Z'), and say by `until` when the hold ends"
)


router = Router("legal holds")
_NEEDED = Needs(Right.HOLD, Over.SOME)
_ONE = "/holds/{hold_id}"
_CLAIMS = 100


@router.add("POST /holds", _NEEDED, "Place a hold", 404, 409, status=201)
async def place_hold(body: HoldBody, access: Asking) -> Answer[PlacedHold]:
    """Place a hold. Once this returns, nothing deletes what the hold keeps. The answer lists what
    erasures had claimed before."""
    return await _write(access, body)


@router.add("GET /holds", _NEEDED, "List holds", 404)
async def list_holds(
    page: InQuery[HoldParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownHold]:
    """Holds, the newest first, including ended and released ones. Those of every model are listed
    only for callers with the right over everything."""
    model = None
    if page.model_id is not None:
        # who has the right over everything also lists holds of a model that is not registered
        model = await model_numbers.number_of(connection, page.model_id)
        if model is None or not access.scope.is_everything:
            model = (await access.find_model(connection, page.model_id)).model
    listed_holds = await holds.list_holds(
        connection,
        state=page.state,
        model=model,
        before=page.find_before(),
        limit=page.limit + 1,
        within=access.scope,
    )
    ids = await model_numbers.names(connection, [hold.model for hold in listed_holds])
    return page.answer(listed_holds, partial(_show_hold, ids=ids), by_time("placed_at"))


@router.add(f"GET {_ONE}", _NEEDED, "Read a hold")
async def get_hold(hold_id: UUID, connection: Reading, access: Asking) -> Answer[ShownHold]:
    """One hold."""
    hold = await holds.get_hold(connection, hold_id, within=access.scope)
    return await _build_answer(connection, hold)


@router.add(f"PUT {_ONE}", _NEEDED, "Change a hold", 409)
async def change_hold(
    hold_id: UUID, body: HoldBody, if_match: IfMatch, access: Asking
) -> Answer[PlacedHold]:
    """Replace a hold under the same id. What only the old one kept is released."""
    return await _write(access, body, hold_id, if_match)


@router.add(f"DELETE {_ONE}", _NEEDED, "Release a hold", 409)
async def release_hold(
    hold_id: UUID, why: InQuery[ReleaseParameters], if_match: IfMatch, access: Asking
) -> Answer[ShownHold]:
    """Release a hold: policies apply again to what it kept, and erasures that waited for it
    continue. It stays listed, with its history."""
    model_id: str | None = None

    async def build_body(connection: AsyncConnection) -> Entry:
        nonlocal model_id
        before = await _lock_unreleased(connection, access, hold_id, if_match)
        ids = await model_numbers.names(connection, [before.model])
        model_id = None if before.model is None else ids.get(before.model)
        return {"id": str(hold_id), "reason": why.reason, "revision": before.revision + 1}

    hold = await access.ledger.write(
        "hold_released",
        build_body,
        actor=access.who,
        note=lambda hold: _build_note(Action.HOLD_RELEASED, model_id, hold, reason=why.reason),
    )
    async with access.engine.connect() as connection:
        return await _build_answer(connection, hold)


@router.add(f"GET {_ONE}/history", _NEEDED, "Read a hold's history", order="the oldest first")
async def get_hold_history(
    hold_id: UUID, page: InQuery[PageParameters], connection: Reading, access: Asking
) -> PageAnswer[HoldChange]:
    """Every revision of a hold, the oldest first: what it was, when, and who made it so."""
    await holds.get_hold(connection, hold_id, within=access.scope)
    after = page.find_after(int) or 0
    revisions = await holds.list_revisions(connection, hold_id, after=after, limit=page.limit + 1)
    return page.answer(revisions, _show_change, attrgetter("revision"))


@router.add(f"GET {_ONE}/held", _NEEDED, "Count what a hold keeps", 409)
async def get_held(hold_id: UUID, connection: Querying, access: Asking) -> Answer[HoldCount]:
    """Count what the hold matches now, beginning with the newest, as far as time allows."""
    hold = await holds.get_hold(connection, hold_id, within=access.scope)
    if hold.is_redacted:
        raise Conflict("The hold has ended and an erasure removed its filter: it keeps nothing.")
    return Answer(
        HoldCount.show(
            await count_held(connection, hold, seconds=access.settings.query_timeout_seconds)
        )
    )


async def _write(
    access: Access, body: HoldBody, hold_id: UUID | None = None, expected: int | None = None
) -> Answer[PlacedHold]:
    """Write a hold to the ledger: a new one, or in place of one that has the revision `expected`.

    Raises InvalidFilter; Invalid if it would hold nothing.
    """
    if body.until is not None and body.until <= datetime.now(UTC):
        raise Invalid.of("until", "it is in the past: leave it out, or give a future time")
    tree = await read_filter(body.filter, body.filter_lang, clock=_FIXED_CLOCK)
    warnings: Sequence[str] = ()

    async def build_body(connection: AsyncConnection) -> Entry:
        nonlocal warnings
        id, revision = uuid4(), 1
        if hold_id is not None:
            before = await _lock_unreleased(connection, access, hold_id, expected)
            id, revision = hold_id, before.revision + 1
        entry, warnings = await _build_entry(connection, access, body, tree)
        return entry | {"id": str(id), "revision": revision}

    kind, action = ("hold_placed", Action.HOLD_PLACED)
    if hold_id is not None:
        kind, action = ("hold_changed", Action.HOLD_CHANGED)
    placement: holds.Placement = await access.ledger.write(
        kind,
        build_body,
        actor=access.who,
        note=lambda placement: _build_note(action, body.model_id, placement.hold),
    )
    hold = placement.hold
    async with access.engine.connect() as connection:
        shown = await _show_placed(connection, placement, warnings)
    if hold_id is not None:
        return Answer(shown, revision=hold.revision)
    return Answer(shown, 201, revision=hold.revision, location=f"/v1/holds/{hold.id}")


async def _build_entry(
    connection: AsyncConnection, access: Access, body: HoldBody, tree: Node | None
) -> tuple[dict[str, Any], Sequence[str]]:
    model, expected = await _find_model(connection, access, body.model_id)
    is_text = isinstance(body.filter, str) and body.filter_lang != "cql2-json"
    hold_filter = await holds.build_filter(
        connection,
        model,
        tree,
        inference_ids=body.inference_ids,
        source=body.filter if is_text else None,
        types=body.types,
    )
    until = None if body.until is None else body.until.astimezone(UTC).isoformat()
    values = body.model_dump(include={"name", "reason", "model_id", "inference_ids"})
    warnings = (*expected, *hold_filter.warnings)
    return values | {"filter": hold_filter.text, "until": until}, warnings


async def _find_model(
    connection: AsyncConnection, access: Access, model_id: str | None
) -> tuple[int | None, Sequence[str]]:
    over_all = access.scope.is_everything
    if model_id is None and not over_all:
        raise Forbidden("A hold of every model needs the rights `read` and `hold` over everything.")
    if model_id is None:
        return None, ()
    try:
        return (await access.find_model(connection, model_id, lock=True)).model, ()
    except NotFound:
        if not over_all:
            raise
        warning = (
            f"There is no model {model_id!r} yet: the hold applies as soon as it has inferences."
        )
        return await model_numbers.reserve(connection, model_id), (warning,)


async def _lock_unreleased(
    connection: AsyncConnection, access: Access, hold_id: UUID, revision: int | None
) -> holds.Hold:
    hold = await holds.get_hold(connection, hold_id, within=access.scope, lock=True)
    require_revision("The hold", hold.revision, revision)
    if hold.released_at is not None:
        raise Conflict("The hold has been released: place a new one.")
    return hold


def _build_note(action: Action, model_id: str | None, hold: holds.Hold, **detail: Any) -> Note:
    # not its name, which may name a subject that was erased since
    return Note(action, model_id, {"hold": str(hold.id), "revision": hold.revision, **detail})


async def _build_answer(connection: AsyncConnection, hold: holds.Hold) -> Answer[ShownHold]:
    ids = await model_numbers.names(connection, [hold.model])
    return Answer(_show_hold(hold, ids), revision=hold.revision)


def _show_hold(hold: holds.Hold, ids: Mapping[int, str]) -> ShownHold:
    return ShownHold.show(hold, **_describe(hold, ids))


async def _show_placed(
    connection: AsyncConnection, placement: holds.Placement, warnings: Sequence[str]
) -> PlacedHold:
    claims = placement.claimed[:_CLAIMS]
    ids = await model_numbers.names(
        connection, [placement.hold.model, *(claim.model for claim in claims)]
    )
    return PlacedHold.show(
        placement.hold,
        **_describe(placement.hold, ids),
        claimed=len(placement.claimed),
        more=placement.has_more,
        claims=[ShownClaim.show(claim, model_id=ids.get(claim.model)) for claim in claims],
        warnings=warnings,
    )


def _show_change(change: holds.HoldRevision) -> HoldChange:
    document = dict(change.document)
    if document.get("inference_ids") is None and "filter" in document:
        document["filter"] = holds.format_filter(document["filter"])
    else:
        document.pop("filter", None)
    return HoldChange.show(change, document=document)


def _describe(hold: holds.Hold, ids: Mapping[int, str]) -> dict[str, Any]:
    has_filter = hold.inference_ids is None
    return {
        "model_id": None if hold.model is None else ids.get(hold.model),
        "filter": holds.format_filter(hold.filter) if has_filter else None,
        "types": holds.list_declared_types(hold.filter) if has_filter else {},
        "state": hold.find_state(datetime.now(UTC)),
    }
