"""Ground truth: what is true of an inference."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import IO, Annotated, Any, Final, Literal, Self, get_args
from uuid import UUID

from fastapi import Query
from pydantic import ConfigDict, Field, model_validator
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.erasure.pending_deletions import list_erased
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.inference.errors import (
    Conflict,
    Gone,
    Invalid,
    NotFound,
    TooLarge,
    UnsupportedMediaType,
)
from inference_store.inference.field_docs import (
    Body,
    Exact,
    Flag,
    Number,
    ShortText,
    Text,
    WrongField,
)
from inference_store.inference.json_text import exact_json
from inference_store.inference.nearest import describe_nearest, nearest
from inference_store.query import lookup
from inference_store.query.read import GROUND_TRUTH, read
from inference_store.truth.awaiting import drop_all, drop_of_data
from inference_store.truth.documents import MOST_ITEMS, MOST_SOURCE, MOST_TEXT, SOURCE, TruthSet
from inference_store.truth.intake import ROWS, Find, Intake, Outcome
from inference_store.truth.rows import FIELDS, FORMATS, METADATA, make_item, read_rows
from inference_store.truth.sets import TruthWriter, delete_truth, make_tag, put_truth

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import IfMatchTag, LookingUp
from .http import INFERENCE, OF_MODEL, InferenceId, ModelId
from .inference_models import ShownTruth
from .routing import BINARY, Router

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
    def _is_an_item(self) -> Self:
        try:
            make_item(self.model_dump(exclude_none=True))
        except ValueError as wrong:
            field, _, why = str(wrong).partition(": ")
            raise WrongField(field, why) from None
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
        items = [make_item(item.model_dump(exclude_none=True)) for item in self.items]
        return TruthSet(items, self.source, self.complete)


class TruthSets(Shown):
    """The ground truth of an inference."""

    uid: UUID
    sets: list[ShownTruth]
    """One for each source, in the order of their names; none: nothing is known."""


async def _read(connection: AsyncConnection, model: int, uid: UUID) -> list[ShownTruth]:
    inferences = await read(connection, model, [uid], include=[GROUND_TRUTH])
    if not inferences:
        raise NotFound("The inference has just been deleted.")
    sets = exact_json((inferences[0].truth or "[]").encode())
    return [ShownTruth.model_validate(one) for one in sets]


router = Router("inferences")
_TRUTH = f"{INFERENCE}/ground-truth"
_OneSource = Annotated[Source, Query(description="Whose set.")]


@router.add(f"PUT {_TRUTH}", Right.ANNOTATE, "Set ground truth", 409, 410)
async def put_ground_truth(
    model_id: ModelId,
    inference_id: InferenceId,
    body: TruthBody,
    if_match: IfMatchTag,
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
    await put_truth(writer, registration, uid, one, by=by, tag=if_match, note=note)
    async with access.engine.connect() as connection:
        sets = await _read(connection, registration.model, uid)
    mine = [stored for stored in sets if stored.source == one.source]
    if not mine:
        raise NotFound("The ground truth has just been deleted.")
    return Answer(mine[0], revision=make_tag(mine[0].revision, mine[0].at))


@router.add(f"GET {_TRUTH}", Right.READ, "Read ground truth")
async def get_ground_truth(
    model_id: ModelId, inference_id: InferenceId, connection: LookingUp, access: Asking
) -> Answer[TruthSets]:
    """The ground truth of the newest inference of that id. The ETag is that of the set, if there
    is one alone: its `revision`, `@` and its `at`."""
    registration, uids = await access.find_inferences(connection, model_id, inference_id)
    sets = await _read(connection, registration.model, uids[0])
    tag = make_tag(sets[0].revision, sets[0].at) if len(sets) == 1 else None
    return Answer(TruthSets(uid=uids[0], sets=sets), revision=tag)


@router.add(
    f"DELETE {_TRUTH}", Right.ANNOTATE, "Delete ground truth", 409, 410, status=204, answer=Response
)
async def delete_ground_truth(
    model_id: ModelId,
    inference_id: InferenceId,
    if_match: IfMatchTag,
    access: Asking,
    source: _OneSource = SOURCE,
) -> Response:
    """Delete what a source said of an inference, and its bytes. If several inferences have the id,
    name one by `uid:`."""
    registration, uid = await _find(access, model_id, inference_id)
    async with access.engine.begin() as connection:
        await delete_truth(connection, registration.model, uid, source, tag=if_match)
        # it would be joined again
        await drop_of_data(connection, registration.model, [uid], source)
        noted = {"source": source, "revision": None}
        await access.note(connection, Action.GROUND_TRUTH_CHANGED, registration, [uid], **noted)
    return Response(status_code=204)


class RefusedRow(Shown):
    """A row that changed nothing."""

    line: int
    """Of the body, from 1: a line of NDJSON or CSV, a row of Parquet."""
    outcome: Literal["ambiguous", "erased", "refused"]
    why: str


class TruthLoad(Shown):
    """What became of ground truth in bulk. Sets are counted: rows of one inference that follow each
    other are one, and one that is for several inferences or models counts once, by the gravest. The
    same body again changes nothing."""

    matched: int
    """Of which an inference is stored."""
    awaiting: int
    """Of which none is stored yet. They wait, and are joined when it arrives."""
    ambiguous: int
    """Whose id several inferences have."""
    erased: int
    """Whose inference was erased. Nothing comes back."""
    refused: int
    """What cannot be read, and what a legal hold or the cap of labels forbids."""
    changed: int
    """Sets of inferences that were written; more than `matched` if several have one `data_hash`."""
    unchanged: int
    """Sets that were so already."""
    problems: list[RefusedRow]
    """The first hundred rows that changed nothing, with the reasons."""


_BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "Rows. Each has one of `inference_id`, `uid`, `data_hash`, `metadata.KEY`;"
        " `model_id`, if it is not the path's; `source` and `complete`, if they are not `human` and"
        " true; and `items` as a set has, or one item: `label`, `xmin`, `ymin`, `xmax`, `ymax`,"
        " `text`, `value`.",
        "content": dict.fromkeys(FORMATS, BINARY),
    }
}
_MOST_MODELS: Final = 100
"""Of rows that name none: what waits is written for each."""
_MEMORY_BYTES: Final = 16 * 1024 * 1024
_Columns = Annotated[
    list[Annotated[str, Field(max_length=512, json_schema_extra={"pattern": "^[^=]+=.+$"})]],
    Query(
        max_length=32,
        description="Names of columns, if they are others: `label=class`. Repeat it.",
        examples=[["inference_id=image", "label=class"]],
    ),
]


@router.add(
    f"POST {OF_MODEL}/ground-truth",
    Right.ANNOTATE,
    "Load ground truth",
    *(409, 413, 415),
    in_bulk=True,
    openapi_extra=_BODY,
)
async def load_ground_truth(
    model_id: ModelId,
    access: Asking,
    columns: _Columns = [],  # noqa: B006
) -> Answer[TruthLoad]:
    """Take the ground truth of many inferences: NDJSON, CSV or Parquet. What comes before its
    inference waits for it, some days. A set of `data_hash` is for every inference of that datum."""
    async with access.engine.connect() as connection:
        registration = await access.find_model(connection, model_id)

    async def find(_: object) -> Mapping[str | None, Sequence[Registration]]:
        return {model_id: (registration,)}

    return await _load(access, columns, find, model_id)


@router.add(
    "POST /ground-truth",
    Needs(Right.ANNOTATE, Over.SOME),
    "Load ground truth of several models",
    *(409, 413, 415),
    in_bulk=True,
    openapi_extra=_BODY,
)
async def load_ground_truth_of_models(
    access: Asking,
    columns: _Columns = [],  # noqa: B006
) -> Answer[TruthLoad]:
    """Take ground truth as for one model; each row says of which, by `model_id`. A row of
    `data_hash` can do without: it is for every inference of that datum in all models that you may
    label, if these are at most a hundred, and waits in each of them."""

    async def find(ids: Collection[str | None]) -> Mapping[str | None, Sequence[Registration]]:
        named, within = {model_id for model_id in ids if model_id is not None}, access.scope
        found: dict[str | None, Sequence[Registration]] = {}
        async with access.engine.connect() as connection:
            known = await registrations.find_by_ids(connection, named, within=within)
            if None in ids:
                every = await registrations.page(connection, limit=_MOST_MODELS + 1, within=within)
                found[None] = every if len(every) <= _MOST_MODELS else ()
        return found | {model_id: (model,) for model_id, model in known.items()}

    return await _load(access, columns, find)


async def _load(
    access: Access, columns: list[str], find: Find, model_id: str | None = None
) -> Answer[TruthLoad]:
    """Take the body. `model_id`: that of rows that name none."""
    kind = access.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind not in FORMATS:
        message = f"the body is one of {', '.join(FORMATS)}"
        raise Invalid.of("header.content-type", message, FORMATS)
    if coding := access.request.headers.get("Content-Encoding"):
        raise UnsupportedMediaType(
            f"The body is encoded as {coding!r}, which is not read: send it as it is, without"
            " Content-Encoding."
        )
    names = _read_columns(columns)

    async def note(connection: AsyncConnection, model: Registration, sets: int) -> None:
        await access.note(connection, Action.GROUND_TRUTH_CHANGED, model, sets=sets)

    days = access.settings.ground_truth_wait_days
    writer = TruthWriter(access.engine, access.blobs)
    intake = Intake(writer, find, access.who.actor, timedelta(days=days), note)
    async with access.app.admission.admit(access.admission_name):
        with SpooledTemporaryFile(_MEMORY_BYTES) as file:
            await _receive(access, file)
            rows = read_rows(file, kind, names, model_id)
            while some := await asyncio.to_thread(lambda: list(islice(rows, ROWS))):
                await intake.take(some)
    counts = {name: intake.outcomes[name] for name in get_args(Outcome)}
    problems = [RefusedRow.show(each, line=each.row.line) for each in intake.problems]
    changes = {"changed": intake.changed, "unchanged": intake.unchanged}
    return Answer(TruthLoad(**counts, **changes, problems=problems))


@router.add(
    f"DELETE {OF_MODEL}/ground-truth",
    Right.ANNOTATE,
    "Delete ground truth that waits",
    status=204,
    answer=Response,
)
async def delete_awaiting_ground_truth(model_id: ModelId, access: Asking) -> Response:
    """Delete what waits for inferences that have not come. That of inferences stays."""
    async with access.engine.connect() as connection:
        registration = await access.find_model(connection, model_id)
    count, dropped = 1, 0
    while count:
        async with access.engine.begin() as connection:
            count = await drop_all(connection, registration.model)
            if count:
                noted: dict[str, Any] = {"sets": -count}
                await access.note(connection, Action.GROUND_TRUTH_CHANGED, registration, **noted)
        dropped += count
    if not dropped:
        raise NotFound("No ground truth of the model waits.")
    return Response(status_code=204)


async def _receive(access: Access, file: IO[bytes]) -> None:
    size, most = 0, access.settings.ground_truth_bytes
    async for piece in access.request.stream():
        size += len(piece)
        if size > most:
            raise TooLarge(f"The body is over {most:,} bytes.")
        file.write(piece)
    file.seek(0)


def _read_columns(columns: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for column in columns:
        ours, _, theirs = column.partition("=")
        if not ours or not theirs:
            message = f"{column!r} is not OURS=THEIRS: write `label=class` if your column of labels"
            raise Invalid.of("query.columns", f"{message} is called `class`")
        if ours in names or theirs in names.values():
            message = f"{column!r} names again what another one names: give each name once"
            raise Invalid.of("query.columns", message)
        names[ours] = theirs
        if ours not in FIELDS and not ours.startswith(METADATA):
            near = nearest(ours, FIELDS)
            message = f"there is no field {ours!r}; {describe_nearest(near, list(FIELDS))}"
            raise Invalid.of("query.columns", message, near)
    return names


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
