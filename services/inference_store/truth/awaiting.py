"""Ground truth that comes before its inference: kept for some days, and joined when that arrives.

It has a document in the bucket as any other set, and a row in `blob_reference` by a made-up uid.
When its inference arrives, the set is written for that inference; then, or when its time is over,
the first document is deleted as one that was replaced. What was erased gets nothing: its id stays
unknown. A set of a datum (`data_hash`) stays until its time is over, for every inference that has
the datum and no set of the source. It goes when one of these is erased, or loses its set.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from secrets import randbits
from typing import Any, Final
from uuid import UUID

from sqlalchemy import and_, delete, exists, false, func, or_, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.pending_deletions import enqueue_superseded
from inference_store.index import registrations
from inference_store.index.registrations import Registration
from inference_store.index.sidecars import among, among_keys, by_model
from inference_store.index.tables import awaiting_truth, blob_reference, inference, truth_set
from inference_store.index.writing import copy_rows
from inference_store.inference.events import uid_floor
from inference_store.inference.json_text import is_number

from .documents import decode_content, encode_document
from .matching import find_matches
from .rows import Address, Row
from .sets import TruthWriter

_HERE: Final = awaiting_truth.c
_BATCH: Final = 2_000
_LOCK: Final = 7_302_031
_Key = tuple[Address, str]
"""An address, and a source."""


async def await_sets(
    connection: AsyncConnection,
    writer: TruthWriter,
    registration: Registration,
    wanted: Mapping[_Key, Row],
    *,
    by: str,
    keep: timedelta,
) -> set[_Key]:
    """Keep sets for inferences that may still come, and return those that are new; those that wait
    already stay as they are, and so does what was said later."""
    model, at = registration.model, datetime.now(UTC)
    until = at + keep
    # of two that bring the same, one waits for the other
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK, model)))
    before: dict[_Key, Any] = {}
    for how, name in {(address.how, address.name) for address, _ in wanted}:
        values = {of.value for of, _ in wanted if (of.how, of.name) == (how, name)}
        same = (_HERE.model == model, _HERE.how == how, _HERE.name == name)
        query = select(awaiting_truth).where(*same, among_keys(_HERE.value, values))
        before |= {_key_of(row): row for row in await connection.execute(query)}
    said = {key: row.at or at for key, row in wanted.items()}
    contents = {key: row.set.content.decode() for key, row in wanted.items()}
    new = {
        key: content
        for key, content in contents.items()
        if key not in before or (before[key].content != content and before[key].at <= said[key])
    }
    if not new:
        return set()
    uids = {key: UUID(int=uid_floor(at).int | randbits(62)) for key in new}
    about = {"model_id": registration.model_id, "revision": 1, "by": by}
    documents = [
        encode_document(
            content.encode(),
            {
                **about,
                "uid": str(uids[key]),
                "at": said[key].isoformat(),
                "source": key[1],
                "address": list(key[0]),
                "until": until.isoformat(),
            },
        )
        for key, content in new.items()
    ]
    places = await writer.put(registration.model_id, at, documents)
    await drop(connection, model, [before[key].uid for key in new if key in before])
    rows = [
        (
            *(model, uids[key], key[0].how, key[0].name, key[0].value, key[1]),
            *(content, by, said[key], until),
        )
        for key, content in new.items()
    ]
    await copy_rows(connection, awaiting_truth, rows)
    references = zip(places, uids.values(), strict=True)
    await copy_rows(connection, blob_reference, [(place, model, uid) for place, uid in references])
    return {*new}


def _key_of(row: Any) -> _Key:
    return Address(row.how, row.value, row.name), row.source


async def drop(connection: AsyncConnection, model: int, uids: Sequence[UUID]) -> None:
    """Delete what waits, and queue its bytes for deletion."""
    if uids:
        await connection.execute(delete(awaiting_truth).where(among(awaiting_truth, model, uids)))
        await enqueue_superseded(connection, model, sorted(uids))


async def restore_awaiting(
    connection: AsyncConnection, model: int, place: str, content: str, about: Mapping[str, Any]
) -> None:
    """Bring back what waits, for a rebuild. `about`: what its document has beside the content."""
    how, value, name = about["address"]
    values = {
        **{"model": model, "uid": UUID(about["uid"]), "how": how, "name": name},
        **{"value": value, "source": about["source"], "content": content, "by": about["by"]},
        "at": datetime.fromisoformat(about["at"]),
        "until": datetime.fromisoformat(about["until"]),
    }
    await connection.execute(insert(awaiting_truth).values(values).on_conflict_do_nothing())
    named = {"storage_key": place, "model": model, "uid": values["uid"]}
    await connection.execute(insert(blob_reference).values(named).on_conflict_do_nothing())


async def drop_all(connection: AsyncConnection, model: int) -> int:
    """Delete some of what waits of a model; return how much, 0: there is no more."""
    query = select(_HERE.uid).where(_HERE.model == model).limit(_BATCH)
    uids = list((await connection.execute(query)).scalars())
    await drop(connection, model, uids)
    return len(uids)


async def find_of_subject(
    connection: AsyncConnection, model: int, key: str, value: str, after: UUID
) -> tuple[list[UUID], UUID | None]:
    """Find the next that wait for the inferences of a subject, numbers in any spelling; return also
    where to go on, None: there are no more."""
    query = select(_HERE.uid, _HERE.value).where(_HERE.model == model, _HERE.uid > after)
    query = query.where(_HERE.how == "metadata", _HERE.name == key)
    rows = list(await connection.execute(query.order_by(_HERE.uid).limit(_BATCH)))
    found = [row.uid for row in rows if _is_same(row.value, value)]
    return found, rows[-1].uid if len(rows) == _BATCH else None


def _is_same(one: str, other: str) -> bool:
    are_numbers = is_number(one) and is_number(other)
    return one == other or (are_numbers and Decimal(one) == Decimal(other))


async def find_of_ids(
    connection: AsyncConnection, model: int, names: Collection[str], uids: Collection[UUID]
) -> list[UUID]:
    """Find what waits for inferences of these ids, or for these, or for their data."""
    of_these = among(inference, model, sorted(uids)) if uids else false()
    hashes = select(inference.c.data_hash).where(of_these)
    named = or_(
        and_(_HERE.how == "inference_id", among_keys(_HERE.value, names)),
        and_(_HERE.how == "uid", among_keys(_HERE.value, map(str, uids))),
        and_(_HERE.how == "data_hash", _HERE.value.in_(hashes)),
    )
    query = select(_HERE.uid).where(_HERE.model == model, _HERE.name == "", named)
    return list((await connection.execute(query)).scalars())


async def drop_of_data(
    connection: AsyncConnection, model: int, uids: Sequence[UUID], source: str | None = None
) -> None:
    """Delete what waits for the data of these inferences, of one source or all."""
    hashes = select(inference.c.data_hash).where(among(inference, model, uids))
    of_data = (_HERE.model == model, _HERE.how == "data_hash", _HERE.value.in_(hashes))
    query = select(_HERE.uid).where(*of_data)
    if source is not None:
        query = query.where(_HERE.source == source)
    await drop(connection, model, list((await connection.execute(query)).scalars()))


async def expire(connection: AsyncConnection) -> int:
    """Delete what has waited for too long; return how many, 0: there are no more."""
    query = select(_HERE.model, _HERE.uid).where(_HERE.until < func.now()).limit(_BATCH)
    rows = [(row.model, row.uid) for row in await connection.execute(query)]
    for model, uids in by_model(rows):
        await drop(connection, model, uids)
    return len(rows)


async def join_next(writer: TruthWriter, after: tuple[int, UUID] | None) -> tuple[int, UUID] | None:
    """Join what waits next, in a fixed order, with inferences that have arrived; return where to go
    on, None: all was looked at."""
    query = select(awaiting_truth).order_by(_HERE.model, _HERE.uid).limit(_BATCH)
    if after is not None:
        query = query.where(tuple_(_HERE.model, _HERE.uid) > tuple_(*after))
    async with writer.engine.connect() as connection:
        rows = list(await connection.execute(query))
        names = await registrations.names(connection, {row.model for row in rows})
        known = await registrations.find_by_ids(connection, set(names.values()))
    for model, of_model in groupby(rows, key=lambda row: row.model):
        if (registration := known.get(names.get(model, ""))) is not None:
            await _join(writer, registration, list(of_model))
    return (rows[-1].model, rows[-1].uid) if len(rows) == _BATCH else None


async def _join(writer: TruthWriter, registration: Registration, rows: Sequence[Any]) -> None:
    model = registration.model
    async with writer.engine.connect() as connection:
        addresses = {_key_of(row)[0] for row in rows if row.how != "data_hash"}
        matches = await find_matches(connection, model, addresses)
        unlabelled = await _find_unlabelled(connection, model, rows)
    by_who: defaultdict[str, dict[tuple[UUID, str], Any]] = defaultdict(dict)
    for row in rows:
        uids = matches.uids.get(_key_of(row)[0], set())
        for uid in uids if len(uids) == 1 else unlabelled.get(row.uid, ()):
            by_who[row.by][uid, row.source] = row
    for by, joined in by_who.items():
        sets = {key: decode_content(row.content, row.source) for key, row in joined.items()}
        names = await writer.resolve(model, list(sets.values()))
        async with writer.engine.begin() as connection:
            if not await writer.hold_names(connection, model, names):
                continue  # the next turn joins it
            said_at = {key: row.at for key, row in joined.items()}
            written = await writer.write(connection, registration, sets, by=by, said_at=said_at)
            ended = [(key, row) for key, row in joined.items() if row.how != "data_hash"]
            done = {row.uid for key, row in ended if key not in written.held}
            await drop(connection, model, sorted(done))


async def _find_unlabelled(
    connection: AsyncConnection, model: int, rows: Sequence[Any]
) -> dict[UUID, list[UUID]]:
    """Return the next inferences of the data for which rows wait that have no set of their source,
    by the uid of the row."""
    waiting = [row.uid for row in rows if row.how == "data_hash"]
    if not waiting:
        return {}
    here, has = inference.c, truth_set.c
    known = exists().where(has.model == model, has.uid == here.uid, has.source == _HERE.source)
    query = select(_HERE.uid, here.uid.label("found")).where(among(awaiting_truth, model, waiting))
    query = query.where(here.model == model, here.data_hash == _HERE.value, ~known).limit(_BATCH)
    found: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for uid, inference_uid in await connection.execute(query):
        found[uid].append(inference_uid)
    return found
