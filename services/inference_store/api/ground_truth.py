"""Ground truth: what is true of an inference."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

from fastapi import Query
from pydantic import ConfigDict, Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure.pending_deletions import list_erased
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict, Gone, NotFound
from inference_store.inference.field_docs import (
    Body,
    Exact,
    Flag,
    Number,
    ShortText,
    Text,
    WrongField,
)
from inference_store.query import lookup
from inference_store.truth.documents import (
    MOST_ITEMS,
    MOST_SOURCE,
    MOST_TEXT,
    SOURCE,
    TruthItem,
    TruthSet,
)
from inference_store.truth.sets import (
    StoredSet,
    TruthWriter,
    delete_truth,
    find_sets,
    put_truth,
)

from .access import Access, Asking
from .answer import Answer, Shown
from .dependencies import IfMatch, LookingUp
from .http import INFERENCE, InferenceId, ModelId
from .routing import Router

Source = Annotated[Text, Field(min_length=1, max_length=MOST_SOURCE)]


class TruthItemBody(Body):
    """One thing that is there. It has at least one of these."""

    label: Annotated[ShortText, Field(min_length=1)] | None = None
    """What it is, as the model's predictions name it."""
    box: Annotated[list[Number], Field(min_length=4, max_length=4)] | None = None
    """xmin, ymin, xmax, ymax in pixels of the picture, y down."""
    text: Annotated[Text, Field(max_length=MOST_TEXT)] | None = None
    value: Exact | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.box is not None and not (self.box[0] <= self.box[2] and self.box[1] <= self.box[3]):
            raise WrongField("box", "it is xmin, ymin, xmax, ymax: the smaller corner comes first")
        if all(part is None for part in (self.label, self.box, self.text, self.value)):
            raise WrongField("label", "an item has a `label`, `box`, `text` or `value`")
        return self


class TruthBody(Body):
    """All that one source says of an inference. It replaces what the source said before."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"items": [{"label": "person", "box": [12, 20, 96, 310]}]},
                {"source": "inspector", "items": [], "complete": True},
            ]
        }
    )

    source: Source = SOURCE
    """Who or what says so. Each source has a set of its own."""
    complete: Flag = True
    """Whether `items` name all there is, so that what else was predicted is wrong."""
    items: Annotated[list[TruthItemBody], Field(max_length=MOST_ITEMS)]
    """What is there. None: there is nothing to find."""

    def to_set(self) -> TruthSet:
        """Return what is stored."""
        items = [
            TruthItem(
                item.label,
                None if item.box is None else (item.box[0], item.box[1], item.box[2], item.box[3]),
                item.text,
                item.value,
            )
            for item in self.items
        ]
        return TruthSet(items, self.source, self.complete)


class ShownTruthItem(Shown):
    """One thing that is there."""

    label: str | None
    box: list[float] | None
    """xmin, ymin, xmax, ymax in pixels, y down."""
    text: str | None
    value: Exact | None


class ShownTruth(Shown):
    """What one source says of an inference."""

    source: str
    complete: bool
    """Whether `items` name all there is."""
    revision: int
    """Raised each time that the set is replaced."""
    by: str
    """Who set it."""
    at: datetime
    items: list[ShownTruthItem]


class TruthSets(Shown):
    """The ground truth of an inference."""

    uid: UUID
    sets: list[ShownTruth]
    """One for each source, in the order of their names; none: nothing is known."""


def show_truth(stored: StoredSet) -> ShownTruth:
    """Return a set for an answer."""
    items = [
        ShownTruthItem(
            label=item.label,
            box=None if item.box is None else list(item.box),
            text=item.text,
            value=item.value,
        )
        for item in stored.set.items
    ]
    return ShownTruth(
        source=stored.set.source,
        complete=stored.set.complete,
        revision=stored.revision,
        by=stored.by,
        at=stored.at,
        items=items,
    )


router = Router("inferences")
_TRUTH = f"{INFERENCE}/ground-truth"
_OneSource = Annotated[Source, Query(description="Whose set.")]


@router.add(f"PUT {_TRUTH}", Right.ANNOTATE, "Set ground truth", 409, 410)
async def put_ground_truth(
    model_id: ModelId,
    inference_id: InferenceId,
    body: TruthBody,
    if_match: IfMatch,
    access: Asking,
) -> Answer[ShownTruth]:
    """Say what is true of an inference; it replaces what the same source said before. The same
    again changes nothing. `If-Match` with 0 means that the source has said nothing yet. If several
    inferences have the id, name one by `uid:`."""
    one = body.to_set()
    registration, uid = await _find(access, model_id, inference_id)

    async def note(connection: AsyncConnection, revision: int) -> None:
        noted = {"source": one.source, "revision": revision}
        await access.note(connection, Action.GROUND_TRUTH_CHANGED, registration, [uid], **noted)

    writer = TruthWriter(access.engine, access.blobs)
    by = access.who.actor
    await put_truth(writer, registration, uid, one, by=by, revision=if_match, note=note)
    async with access.engine.connect() as connection:
        sets = await find_sets(connection, registration.model, [uid])
    mine = [stored for stored in sets.get(uid, ()) if stored.set.source == one.source]
    if not mine:
        raise NotFound("The ground truth has just been deleted.")
    return Answer(show_truth(mine[0]), revision=mine[0].revision)


@router.add(f"GET {_TRUTH}", Right.READ, "Read ground truth")
async def get_ground_truth(
    model_id: ModelId, inference_id: InferenceId, connection: LookingUp, access: Asking
) -> Answer[TruthSets]:
    """The ground truth of the newest inference of that id. The ETag is the revision of the set, if
    there is one alone."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    sets = (await find_sets(connection, registration.model, uids[:1])).get(uids[0], [])
    revision = sets[0].revision if len(sets) == 1 else None
    return Answer(TruthSets(uid=uids[0], sets=[*map(show_truth, sets)]), revision=revision)


@router.add(
    f"DELETE {_TRUTH}", Right.ANNOTATE, "Delete ground truth", 409, 410, status=204, answer=Response
)
async def delete_ground_truth(
    model_id: ModelId,
    inference_id: InferenceId,
    if_match: IfMatch,
    access: Asking,
    source: _OneSource = SOURCE,
) -> Response:
    """Delete what a source said of an inference, and its bytes. If several inferences have the id,
    name one by `uid:`."""
    registration, uid = await _find(access, model_id, inference_id)
    async with access.engine.begin() as connection:
        await delete_truth(connection, registration.model, uid, source, revision=if_match)
        noted = {"source": source, "revision": None}
        await access.note(connection, Action.GROUND_TRUTH_CHANGED, registration, [uid], **noted)
    return Response(status_code=204)


async def _find(access: Access, model_id: str, inference_id: str) -> tuple[Registration, UUID]:
    """Return the model and the one inference of an id. Raises NotFound; Gone for what was erased
    or is being erased; Conflict if several have the id."""
    async with access.engine.connect() as connection:
        registration = await access.find_model(connection, model_id)
        model = registration.model
        try:
            uid, *others = await lookup.find_by_id(connection, model, inference_id, most=2)
        except NotFound:
            await _refuse_erased(connection, model, inference_id)
            raise
    if others:
        raise Conflict(
            f"Several inferences have the id {inference_id!r}: name one by `uid:`, as in uid:{uid}."
        )
    return registration, uid


async def _refuse_erased(connection: AsyncConnection, model: int, inference_id: str) -> None:
    uid = lookup.parse_uid(inference_id)
    try:
        await lookup.find_by_id(connection, model, inference_id, most=1, hidden=True)
    except NotFound:
        if uid is not None and await list_erased(connection, model, [uid]):
            raise Gone(f"The inference {inference_id!r} was erased.") from None
        return
    raise Gone(f"The inference {inference_id!r} is being erased.")
