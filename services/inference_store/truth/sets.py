"""Writes sets of ground truth: one of an inference and a source is replaced whole.

Order: names to the dictionary · lock the inferences · try the rows and roll back, if a legal hold
is about truth (it must still match) · put the documents · write the rows · commit.
A crash after the put leaves an object that nothing names, which a reconciliation finds. While the
inferences are locked nothing of them can be marked for erasure, so that no truth comes to what was
erased. Every document has a row in `blob_reference`: it goes with its inference, as every other
object that an inference points to. One that was replaced keeps this row until its bytes are gone
(`enqueue_superseded`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, Text, delete, func, literal, select, tuple_
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.holds import Hold
from inference_store.erasure.pending_deletions import enqueue_superseded
from inference_store.index import partitions, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import among
from inference_store.index.tables import blob_reference, erasing, inference, truth, truth_set
from inference_store.index.writing import copy_rows
from inference_store.inference.errors import Conflict, HeldByHold, NotFound, require_revision
from inference_store.inference.events import received_at_of
from inference_store.inference.tar import CONTENT_TYPE
from inference_store.objects import Blobs
from inference_store.platform.json_encoding import format_instant

from .documents import TruthItem, TruthSet, encode_document, hash_content, lay_out

Key: TypeAlias = tuple[UUID, str]
"""An inference of the model, and a source."""
_TRIES: Final = 3


def make_tag(revision: int, at: datetime) -> str:
    """Return the ETag of a set, which no other one of the inference and source has; 0: of none."""
    return f"{revision}@{format_instant(at)}" if revision else "0"


class NewRow(NamedTuple):
    """A set to write, and where its document lies."""

    key: Key
    set: TruthSet
    revision: int
    hash: bytes
    place: str
    by: str
    at: datetime


@dataclass(slots=True)
class Written:
    """What became of sets: those that were `changed`, with their revisions; those that were so
    already; inferences that are not there, or are being erased; labels over the model's cap; and
    what holds would not match any more."""

    changed: dict[Key, int] = field(default_factory=dict)
    unchanged: set[Key] = field(default_factory=set)
    gone: set[UUID] = field(default_factory=set)
    capped: set[Key] = field(default_factory=set)
    held: dict[Key, Hold] = field(default_factory=dict)


class TruthWriter:
    """Writes truth. For one task at a time, because the dictionary's names may be forgotten."""

    def __init__(self, engine: AsyncEngine, blobs: Blobs) -> None:
        self.engine, self._blobs = engine, blobs
        self._dictionary = Dictionary(engine)

    async def resolve(self, model: int, sets: Collection[TruthSet]) -> dict[int, set[str]]:
        """Give the labels of these sets integers, before the transaction that writes them."""
        names = {item.label for one in sets for item in one.items if item.label is not None}
        await self._dictionary.resolve({}, {model: names})
        return {model: names}

    async def hold_names(
        self, connection: AsyncConnection, model: int, names: Mapping[int, Collection[str]]
    ) -> bool:
        """Keep the registration and the names until the transaction ends; False: resolve again."""
        if not await registrations.keep(connection, [model]):
            raise NotFound("The model's registration has just been removed.")
        return await self._dictionary.has_names(connection, {}, names)

    async def write(
        self,
        connection: AsyncConnection,
        registration: Registration,
        wanted: Mapping[Key, TruthSet],
        *,
        by: str,
        tag: str | None = None,
        said_at: Mapping[Key, datetime] = MappingProxyType({}),
    ) -> Written:
        """Write the sets that differ from those stored. `tag`: that each must have; `said_at`: when
        it was said, if that is not now; what is newer stays. Raises PreconditionFailed,
        ObjectStoreUnavailable."""
        written, model, now = Written(), registration.model, datetime.now(UTC)
        # Before the rows: no hold is placed between the check of holds here and the commit.
        await holds.block_placement(connection)
        written.gone = await lock_inferences(connection, model, {uid for uid, _ in wanted})
        kept = {key: one for key, one in wanted.items() if key[0] not in written.gone}
        stored = await _find_stored(connection, model, {uid for uid, _ in kept})
        rows: list[NewRow] = []
        contents: list[bytes] = []
        for key, one in kept.items():
            at = said_at.get(key, now)
            present, hash, before = stored.get(key, (0, None, at))
            require_revision("The ground truth", make_tag(present, before), tag)
            content = one.content
            if hash == (new_hash := hash_content(content)) or before > at:
                written.unchanged.add(key)
            elif not self._fits(model, one):
                written.capped.add(key)
            else:
                rows.append(NewRow(key, one, present + 1, new_hash, "", by, at))
                contents.append(content)
        change = partial(self._replace, connection, model, rows, stored)
        ended = await _find_ended(connection, model, [row.key[0] for row in rows], change)
        written.held = {row.key: ended[row.key[0]] for row in rows if row.key[0] in ended}
        pairs = [pair for pair in zip(rows, contents, strict=True) if pair[0].key[0] not in ended]
        if pairs:
            documents = [_encode(registration.model_id, row, content) for row, content in pairs]
            places = await self.put(registration.model_id, now, documents)
            rows = [
                row._replace(place=place) for (row, _), place in zip(pairs, places, strict=True)
            ]
            await self._replace(connection, model, rows, stored)
            references = [(row.place, model, row.key[0]) for row in rows]
            await copy_rows(connection, blob_reference, references)
            replaced = {row.key[0] for row in rows if row.key in stored}
            await enqueue_superseded(connection, model, sorted(replaced))
            written.changed = {row.key: row.revision for row in rows}
        return written

    async def _replace(
        self,
        connection: AsyncConnection,
        model: int,
        rows: Sequence[NewRow],
        stored: Collection[Key],
    ) -> None:
        await delete_rows(connection, model, [row.key for row in rows if row.key in stored])
        await self.copy(connection, model, rows)

    async def put(self, model_id: str, at: datetime, documents: Sequence[bytes]) -> list[str]:
        """Put documents into the bucket, and return their storage keys."""
        segments = list(lay_out(self._blobs.buckets.default, model_id, at, documents))
        objects = [(place, tar) for place, tar, _ in segments]
        await asyncio.to_thread(self._blobs.put_many, objects, content_type=CONTENT_TYPE)
        return [key for _, _, keys in segments for key in keys]

    def _fits(self, model: int, one: TruthSet) -> bool:
        number = self._dictionary.labels.number
        return all(
            item.label is None or number(model, item.label) is not None for item in one.items
        )

    async def copy(self, connection: AsyncConnection, model: int, rows: Sequence[NewRow]) -> None:
        """Write the rows of sets, of which nothing is stored."""
        sets: list[tuple[Any, ...]] = []
        items: list[tuple[Any, ...]] = []
        for (uid, source), one, revision, hash, place, by, at in rows:
            labels = [self._number(model, item) for item in one.items]
            first = next((number for number in labels if number is not None), None)
            about = (revision, one.complete, first, len(labels), by, at, hash, place)
            sets.append((model, uid, source, *about))
            for ordinal, (item, number) in enumerate(zip(one.items, labels, strict=True)):
                items.append((model, uid, source, ordinal, number, *_describe(item)))
        await copy_rows(connection, truth_set, sets)
        await copy_rows(connection, truth, items)

    def _number(self, model: int, item: TruthItem) -> int | None:
        return None if item.label is None else self._dictionary.labels.number(model, item.label)


def _encode(model_id: str, row: NewRow, content: bytes) -> bytes:
    uid, source = row.key
    about = {"model_id": model_id, "uid": str(uid), "source": source, "revision": row.revision}
    return encode_document(content, about | {"by": row.by, "at": row.at.isoformat()})


async def _find_ended(
    connection: AsyncConnection,
    model: int,
    uids: Sequence[UUID],
    change: Callable[[], Awaitable[None]],
) -> dict[UUID, Hold]:
    """Return the inferences that a legal hold protects, and would not after a change of their
    truth. The change is tried, and rolled back. Raises HoldUnreadable."""
    in_force = await holds.list_in_force(connection, [model]) if uids else []
    # no other filter knows anything of truth
    naming = [hold for hold in in_force if "truth" in hold.filter]
    before = {hold.id: await holds.find_holds(connection, [hold], model, uids) for hold in naming}
    if not any(before.values()):
        return {}
    trial = await connection.begin_nested()
    await change()
    ended: dict[UUID, Hold] = {}
    for hold in naming:
        after = await holds.find_holds(connection, [hold], model, list(before[hold.id]))
        ended |= {uid: hold for uid in before[hold.id] if uid not in after}
    await trial.rollback()
    return ended


def refuse_held(hold: Hold) -> HeldByHold:
    """Return the refusal of a change after which a hold would not match any more."""
    return HeldByHold(
        f"The legal hold {hold.name!r} ({hold.id}) keeps the inference, and would not match it any"
        " more: change or release the hold first."
    )


def _describe(item: TruthItem) -> tuple[Any, ...]:
    """Return the columns of an item behind its label; boxes are upright."""
    box: tuple[float | None, ...] = (None,) * 5
    if item.box is not None:
        left, top, right, bottom = item.box
        box = (left, top, right, bottom, (right - left) * (bottom - top))
    return (*box, None, None, None, None, None, item.text, item.value)


async def put_truth(
    writer: TruthWriter,
    registration: Registration,
    uid: UUID,
    one: TruthSet,
    *,
    by: str,
    tag: str | None,
    note: Any,
) -> None:
    """Write the set of one inference, and note it in the same transaction. Raises NotFound;
    Conflict; PreconditionFailed; ObjectStoreUnavailable."""
    model, key = registration.model, (uid, one.source)
    for _ in range(_TRIES):
        names = await writer.resolve(model, [one])
        async with writer.engine.begin() as connection:
            if not await writer.hold_names(connection, model, names):
                continue
            written = await writer.write(connection, registration, {key: one}, by=by, tag=tag)
            if written.gone:
                raise NotFound("The inference has just been deleted.")
            if key in written.held:
                raise refuse_held(written.held[key])
            if written.capped:
                detail = "The model has as many labels as it may have: use one that it has."
                raise Conflict(detail, at="items")
            if key in written.changed:
                await note(connection, written.changed[key])
            return
    raise Conflict("Its labels are being removed: try again in a moment.", at="items")


async def delete_truth(
    connection: AsyncConnection, model: int, uid: UUID, source: str, *, tag: str | None
) -> None:
    """Delete the set of a source. Raises NotFound; PreconditionFailed."""
    await holds.block_placement(connection)
    gone = await lock_inferences(connection, model, {uid})
    stored = {} if gone else await _find_stored(connection, model, {uid})
    if (uid, source) not in stored:
        raise NotFound(f"The inference has no ground truth of the source {source!r}.")
    revision, _, at = stored[uid, source]
    require_revision("The ground truth", make_tag(revision, at), tag)
    change = partial(delete_rows, connection, model, [(uid, source)])
    if ended := await _find_ended(connection, model, [uid], change):
        raise refuse_held(ended[uid])
    await change()
    await enqueue_superseded(connection, model, [uid])


async def lock_inferences(
    connection: AsyncConnection, model: int, uids: Collection[UUID]
) -> set[UUID]:
    """Lock inferences against erasure; return those that are not there, or are being erased."""
    if not uids:
        return set()
    await partitions.share(connection, [received_at_of(min(uids)), received_at_of(max(uids))])
    there = select(inference.c.uid).where(among(inference, model, sorted(uids)))
    locked = await connection.execute(there.order_by(inference.c.uid).with_for_update())
    present = set(locked.scalars())
    # Checked after the lock: an erasure marks under the same one.
    going = select(erasing.c.uid).where(
        among(erasing, model, sorted(uids)), erasing.c.scope == "inference"
    )
    return set(uids) - present | set((await connection.execute(going)).scalars())


async def _find_stored(
    connection: AsyncConnection, model: int, uids: Collection[UUID]
) -> dict[Key, tuple[int, bytes, datetime]]:
    here = truth_set.c
    query = select(here.uid, here.source, here.revision, here.content_hash, here.at)
    rows = await connection.execute(query.where(among(truth_set, model, sorted(uids))))
    return {(row.uid, row.source): (row.revision, bytes(row.content_hash), row.at) for row in rows}


async def delete_rows(connection: AsyncConnection, model: int, keys: Sequence[Key]) -> None:
    """Delete the rows of sets; their documents stay."""
    if not keys:
        return
    columns = (
        literal([uid for uid, _ in keys], ARRAY(UUID_TYPE(as_uuid=True))),
        literal([source for _, source in keys], ARRAY(Text(collation="C"))),
    )
    pairs = func.unnest(*columns).table_valued("uid", "source", name="pairs").render_derived()
    listed = select(pairs.c.uid, pairs.c.source)
    uids = sorted({uid for uid, _ in keys})
    for table in (truth, truth_set):
        own = (among(table, model, uids), tuple_(table.c.uid, table.c.source).in_(listed))
        await connection.execute(delete(table).where(*own))
