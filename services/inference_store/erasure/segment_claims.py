"""Claims what is erased of segments: whole ones are deleted as one object, others are rewritten.

A segment holds many inferences, so only what belongs to the erased ones is overwritten: entries
that are named by their captures. What another inference points to stays (`kept`), and is noted as
`left_over` if its owner is gone: it goes with the last that points to it. Another inference's mark
never erases what a stored owner has.

One eraser at a time works on a segment: a lease in its row, taken with the claim. It is renewed
when the hash of what is about to be written is noted, so that the next eraser knows what is
there, and it ends with the rows. All of it happens in the fence, or under the lease.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, ColumnElement, Text, bindparam, func, literal, or_, select
from sqlalchemy.dialects.postgresql import Range, insert
from sqlalchemy.dialects.postgresql.ranges import MultiRange
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.holds import list_in_force
from inference_store.erasure.object_claims import find_referenced_members
from inference_store.erasure.pending_deletions import PendingDeletion
from inference_store.index import registrations
from inference_store.index.sidecars import among_keys
from inference_store.index.tables import segment
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.inference.layout import (
    Kind,
    Member,
    is_edited,
    member_of,
    ordinal_of,
    segment_of_key,
)
from inference_store.inference.tar import BLOCK, END, SUFFIXES, pad
from inference_store.objects import DeleteFault, Overwritten, Rewrite

LEASE_SECONDS: Final = 30.0
"""How long a segment is left to an eraser that says nothing any more."""
LEASED: Final = "SegmentLeased"
_HERE = segment.c
# the integer of a model, and a segment's storage key
_Key: TypeAlias = tuple[int, str]


@dataclass(frozen=True, slots=True)
class SegmentClaim:
    """What of a segment may be erased now. `whole`: all of it; `captures`: of inferences that go,
    by ordinal, where their data lie and how long they are; `is_restored`: a replay has found some
    of it erased."""

    model: int
    rewrite: Rewrite
    whole: bool
    captures: Mapping[int, Set[tuple[int, int]]]
    is_restored: bool = False

    @property
    def key(self) -> _Key:
        """The key of its row."""
        return self.model, str(self.rewrite.place)

    def without(self, keys: Collection[StorageKey]) -> "SegmentClaim":
        """Return the claim without these members."""
        members = (member_of(key.key) for key in keys)
        place = self.rewrite.place.key
        offsets = {each.offset for each in members if each is not None and each.segment == place}
        return replace(self, rewrite=replace(self.rewrite, kept=self.rewrite.kept | offsets))


@dataclass(slots=True)
class _Group:
    """What marks have in one segment. `strange`: ranges that they do not own."""

    names: dict[str, int | None] = field(default_factory=dict)
    captures: dict[int, Set[tuple[int, int]]] = field(default_factory=dict)
    marked: set[int] = field(default_factory=set)
    strange: list[frozenset[int]] = field(default_factory=list)
    left: list[Range[int]] = field(default_factory=list)
    was_erased: bool = False


def list_members(mark: PendingDeletion) -> Iterator[tuple[str, StorageKey, Member]]:
    """Yield the keys of a mark that name members, each with its segment."""
    keys = (mark.data, mark.response, mark.metadata, *mark.references)
    for key in dict.fromkeys(key for key in keys if key is not None and "#" in key):
        place = parse_stored(key)
        if (member := member_of(place.key)) is not None:
            yield key, StorageKey(place.bucket, member.segment), member


def list_places(mark: PendingDeletion) -> set[StorageKey]:
    """Return the segments that a mark's members lie in."""
    return {place for _, place, _ in list_members(mark)}


async def defer(
    connection: AsyncConnection, page: Sequence[PendingDeletion], *, patient: bool
) -> list[PendingDeletion]:
    """Return the marks of a full page without those of segments that a later page completes, so
    that each segment is written or deleted once.

    `patient`: more is being marked, so every segment waits that is not complete; else the last one
    alone does.
    """
    groups = _group(page)
    if not groups:
        return list(page)
    rows = await _load(connection, groups)
    waiting = {key for key, group in groups.items() if not _is_complete(rows.get(key), group)}

    def waits(mark: PendingDeletion) -> bool:
        return not waiting.isdisjoint((mark.model, str(place)) for place in list_places(mark))

    if patient:
        return [mark for mark in page if not waits(mark)]
    # those before the last segment are not read again
    waiting &= {(page[-1].model, str(place)) for place in list_places(page[-1])}
    rest = list(page)
    while rest and waits(rest[-1]):
        rest.pop()
    return rest or list(page)


async def find_lease_end(
    connection: AsyncConnection, page: Sequence[PendingDeletion], *, eraser: UUID
) -> float:
    """Return the seconds until the last lease ends that another eraser has on segments of these
    marks; 0: there is none."""
    keys = ((mark.model, key) for mark in page for key in mark.doomed if "#" in key)
    leased = {(model, key.partition("#")[0]) for model, key in keys}
    if not leased:
        return 0.0
    left = func.extract("epoch", func.max(_HERE.leased_until) - func.now())
    query = select(left).where(_match(leased), _is_leased(eraser))
    return float(await connection.scalar(query) or 0)


async def claim_segments(
    connection: AsyncConnection,
    page: Sequence[PendingDeletion],
    doomed: frozenset[str],
    *,
    eraser: UUID,
) -> tuple[list[SegmentClaim], list[DeleteFault]]:
    """Claim what the marks have in segments; return also faults for those that another eraser has.

    Call it in the fence. `doomed`: the claimed keys.
    """
    groups = _group(page, doomed, await _find_models(connection, page, doomed))
    if not groups:
        return [], []
    rows = await _lease(connection, groups, eraser)
    places = sorted({place for _, place in groups})
    kept = await find_referenced_members(connection, places, page)
    # an event may name all of a segment that is not its own: with a hold the headers decide
    is_held = bool(await list_in_force(connection, {model for model, _ in groups}))
    claims, faults = [], []
    for (model, place), group in sorted(groups.items()):
        row = rows.get((model, place))
        if row is None or row.is_leased:
            until = None if row is None else row.leased_until
            faults.append(_refuse(parse_stored(place), until))
            continue
        if group.left:
            left = _HERE.left_over + MultiRange(group.left)
            own = (_HERE.model == model, _HERE.storage_key == place)
            await connection.execute(segment.update().where(*own).values(left_over=left))
        claim = _make_claim(row, group, kept.get(place, frozenset()))
        claims.append(replace(claim, whole=claim.whole and not is_held))
    return claims, faults


def _refuse(place: StorageKey, until: datetime | None) -> DeleteFault:
    end = "" if until is None else f" until {until:%H:%M:%S} UTC at the latest"
    reason = f"another retention service is at work on it{end}: it is tried again then"
    return DeleteFault(place, LEASED, reason)


def _make_claim(row: Any, group: _Group, kept: frozenset[int]) -> SegmentClaim:
    erased = _list_ordinals(row.erased)
    return SegmentClaim(
        row.model,
        Rewrite(
            parse_stored(row.storage_key),
            names=group.names,
            ordinals=erased,
            offsets=tuple(group.strange),
            kept=kept,
            sizes=frozenset(row.sizes),
        ),
        whole=not kept and _is_whole(row, group),
        captures=group.captures,
        is_restored=group.was_erased,
    )


def _is_whole(row: Any, group: _Group) -> bool:
    """Return whether nothing of a segment would be left, so that it need not be read: the captures
    are all of its, nobody else claims one, and what they name fills it. An event may say anything
    of one capture alone."""
    places = {place for of_one in group.captures.values() for place in of_one}
    filled = sum(BLOCK + length + len(pad(length)) for _, length in places) + len(END)
    is_sure = filled in row.sizes and not row.contested
    return is_sure and _is_covered(row, group.captures.keys())


def _is_covered(row: Any, ordinals: Collection[int]) -> bool:
    return row.members is not None and all(ordinal in ordinals for ordinal in range(row.members))


def _is_complete(row: Any, group: _Group) -> bool:
    """Return whether nothing more of a segment can be marked; one that is not known is."""
    if row is None or row.members is None:
        return True
    return _is_covered(row, _list_ordinals(row.erased) | group.marked)


def _list_ordinals(ranges: Iterable[Range[int]] | None) -> frozenset[int]:
    return frozenset(n for span in ranges or () for n in range(span.lower or 0, span.upper or 0))


async def _find_models(
    connection: AsyncConnection, page: Sequence[PendingDeletion], doomed: Set[str]
) -> Mapping[str, int]:
    """Return the integers of the models of segments that marks of other models take from."""
    names = {
        names[0]
        for mark in page
        for key, place, _ in list_members(mark)
        if key in doomed
        and (names := segment_of_key(place.key)) is not None
        and names[0] != mark.model_id
    }
    found = await registrations.find_by_ids(connection, names) if names else {}
    return {name: registered.model for name, registered in found.items()}


def _group(
    page: Sequence[PendingDeletion],
    doomed: frozenset[str] | None = None,
    models: Mapping[str, int] = MappingProxyType({}),
) -> dict[_Key, _Group]:
    """Group what the marks have in segments; what they do not own, and is not `doomed`, is left.
    `models`: of segments of other models than the marks'."""
    groups: defaultdict[_Key, _Group] = defaultdict(_Group)
    owned: set[str] = set()
    strange: list[tuple[PendingDeletion, dict[str, tuple[str, int]]]] = []
    for mark in page:
        places: defaultdict[StorageKey, dict[str, Member]] = defaultdict(dict)
        others: dict[str, tuple[str, int]] = {}
        for key, place, member in list_members(mark):
            if not mark.owns(key):
                others[key] = str(place), member.offset
                continue
            owned.add(key)
            group = groups[mark.model, str(place)]
            places[place][key] = member
            if doomed is not None and key not in doomed and key in mark.doomed:
                end = member.offset + max(1, member.length)
                group.left.append(Range(member.offset, end))
        for place, members in places.items():
            _add(groups[mark.model, str(place)], mark, members)
        if others and doomed is not None:
            strange.append((mark, others))
    for mark, others in strange:
        for place_text, offsets in _choose_strange(mark, others, (doomed or set()) - owned):
            names = segment_of_key(parse_stored(place_text).key)
            model = mark.model if names is None else models.get(names[0], mark.model)
            groups[model, place_text].strange += offsets
    return dict(groups)


def _choose_strange(
    mark: PendingDeletion, others: Mapping[str, tuple[str, int]], doomed: Set[str]
) -> Iterator[tuple[str, list[frozenset[int]]]]:
    """Yield by segment, in groups, where the data of members lie that a mark does not own and
    erases: what was never stored is one capture, and what was left over may be of several."""
    by_place: defaultdict[str, set[int]] = defaultdict(set)
    for key, (place, offset) in others.items():
        if key in doomed:
            by_place[place].add(offset)
    for place, offsets in by_place.items():
        alone = [frozenset({offset}) for offset in sorted(offsets)]
        yield place, alone if mark.is_stored else [frozenset(offsets)]


def _add(group: _Group, mark: PendingDeletion, members: Mapping[str, Member]) -> None:
    """Add the entries of a mark's capture that go with its scope. The input is also in the
    metadata, which are rewritten elsewhere. `members`: those of the segment, by their keys.
    """
    capture = mark.capture_id
    assert capture is not None, "a mark without a capture owns nothing"
    group.marked.add(ordinal_of(capture))
    group.was_erased |= mark.was_erased or mark.was_certified
    parts = {"data": mark.data, "response": mark.response, "metadata": mark.metadata}
    kinds: Mapping[str, Iterable[Kind]] = {
        "inference": SUFFIXES,
        "input": ("data", "metadata"),
        "response": ("response",),
    }
    for kind in kinds[mark.scope]:
        others = [key for name, key in parts.items() if name != kind]
        if mark.scope == "inference" or parts[kind] is None or parts[kind] not in others:
            member = members.get(parts[kind] or "")
            # what an edit left lies at a place that no key names any more
            was_edited = kind == "metadata" and is_edited(mark.metadata or "")
            if member is not None or was_edited:
                offset = None if member is None else member.offset
                group.names[f"{capture}{SUFFIXES[kind]}"] = offset
    if mark.scope == "inference":
        places = {(member.offset, member.length) for member in members.values()}
        group.captures[ordinal_of(capture)] = places


def _match(keys: Iterable[_Key]) -> ColumnElement[bool]:
    by_model: defaultdict[int, set[str]] = defaultdict(set)
    for model, place in keys:
        by_model[model].add(place)
    return or_(
        *(
            (_HERE.model == model) & among_keys(_HERE.storage_key, places)
            for model, places in sorted(by_model.items())
        )
    )


def _is_leased(eraser: UUID) -> ColumnElement[bool]:
    return (_HERE.leased_until > func.now()) & _HERE.leased_by.is_distinct_from(eraser)


async def _load(connection: AsyncConnection, keys: Iterable[_Key]) -> dict[_Key, Any]:
    rows = await connection.execute(select(segment).where(_match(keys)))
    return {(row.model, row.storage_key): row for row in rows}


async def _lease(
    connection: AsyncConnection, groups: Mapping[_Key, _Group], eraser: UUID
) -> dict[_Key, Any]:
    """Lease the segments that no other eraser has; return all rows. One that no event has named, as
    after a restore, gets a row."""
    found = await _lock(connection, groups, eraser)
    if missing := sorted(groups.keys() - found.keys()):
        new = [{"model": model, "storage_key": place} for model, place in missing]
        await connection.execute(insert(segment).on_conflict_do_nothing(), new)
        found |= await _lock(connection, missing, eraser)
    free = [key for key, row in found.items() if not row.is_leased]
    if free:
        until = func.now() + timedelta(seconds=LEASE_SECONDS)
        values = {"leased_by": eraser, "leased_until": until}
        await connection.execute(segment.update().where(_match(free)).values(values))
    return found


async def _lock(connection: AsyncConnection, keys: Iterable[_Key], eraser: UUID) -> dict[_Key, Any]:
    found: dict[_Key, Any] = {}
    # nothing is erased while another object has the same captures
    leased = (_is_leased(eraser) | _HERE.other_copy.is_not(None)).label("is_leased")
    # model by model: Citus locks the rows of one shard at a time
    for _, some in groupby(sorted(keys), lambda key: key[0]):
        query = select(segment, leased).where(_match(some)).order_by(_HERE.storage_key)
        for row in await connection.execute(query.with_for_update()):
            found[row.model, row.storage_key] = row
    return found


async def note_hashes(
    connection: AsyncConnection,
    noted: Iterable[tuple[SegmentClaim, str, str]],
    *,
    eraser: UUID,
) -> list[DeleteFault]:
    """Note what each segment is, and what is about to be written; renew the leases. Return faults
    for those that another eraser has taken over."""
    by_model: defaultdict[int, list[tuple[str, str, str]]] = defaultdict(list)
    for claim, hash, next_hash in noted:
        by_model[claim.model].append((claim.key[1], hash, next_hash))
    until = func.now() + timedelta(seconds=LEASE_SECONDS)
    faults = []
    for model, rows in sorted(by_model.items()):
        texts = ARRAY(Text(collation="C"))
        columns = [
            func.unnest(literal([row[place] for row in sorted(rows)], texts)).label(name)
            for place, name in enumerate(("key", "hash", "next"))
        ]
        new = select(*columns).subquery()
        own = (_HERE.model == model, _HERE.storage_key == new.c.key, _HERE.leased_by == eraser)
        values = {"last_hash": new.c.hash, "next_hash": new.c.next, "leased_until": until}
        changed = segment.update().where(*own).values(values).returning(_HERE.storage_key)
        found = set((await connection.execute(changed)).scalars())
        faults += [_refuse(parse_stored(place), None) for place, *_ in rows if place not in found]
    return faults


async def load_hashes(
    connection: AsyncConnection, claims: Sequence[SegmentClaim]
) -> list[SegmentClaim]:
    """Return the claims with what each segment may be now: as it was first written, or before or
    after a rewrite. A restored backup does not know how segments were written since."""
    rows = await _load(connection, [claim.key for claim in claims]) if claims else {}
    known: list[SegmentClaim] = []
    for claim in claims:
        row = None if claim.is_restored else rows.get(claim.key)
        hashes = () if row is None else (*row.hashes, row.last_hash, row.next_hash)
        those = frozenset(hash for hash in hashes if hash is not None)
        known.append(replace(claim, rewrite=replace(claim.rewrite, hashes=those)))
    return known


async def forget(
    connection: AsyncConnection,
    claims: Iterable[SegmentClaim],
    rewritten: Mapping[StorageKey, Overwritten],
) -> None:
    """Record the captures that were erased of segments, and delete the rows of those that are gone.

    Call it in the transaction that deletes the rows of the inferences. `rewritten`: all of the
    claims that are not `whole`.
    """
    gone: list[_Key] = []
    added: list[dict[str, Any]] = []
    for claim in claims:
        segment_now = rewritten.get(claim.rewrite.place)
        if segment_now is None or segment_now.is_gone or segment_now.is_empty:
            gone.append(claim.key)
            continue
        here = segment_now.erased
        ordinals = {n for n, places in claim.captures.items() if places <= here}
        if ordinals := ordinals.union(map(ordinal_of, segment_now.found)):
            spans = MultiRange(Range(n, n + 1) for n in sorted(ordinals))
            added.append(dict(zip(("of", "key", "added"), (*claim.key, spans), strict=True)))
    if added:
        own = (_HERE.model == bindparam("of"), _HERE.storage_key == bindparam("key"))
        erased = _HERE.erased + bindparam("added", type_=segment.c.erased.type)
        await connection.execute(segment.update().where(*own).values(erased=erased), added)
    if gone:
        await connection.execute(segment.delete().where(_match(gone)))


async def release(connection: AsyncConnection, keys: Collection[_Key], *, eraser: UUID) -> None:
    """End the leases on segments."""
    if keys:
        own = segment.update().where(_match(keys), _HERE.leased_by == eraser)
        await connection.execute(own.values(leased_by=None, leased_until=None))
