"""The chain of the audit: nobody can change, remove or cut entries without being noticed.

Each entry has a link: a hash over the link before it, over what is fixed in the entry (when, who,
from where, what, of which model) and over a salted hash of its values (the inference and the
detail). So an erasure can remove the values, and the chain stays valid.

Only one process links, after the commit, and no request waits for it. A checkpoint says where the
chain stands, and up to where retention may cut it. It is in the ledger before anything is cut, and
the newest is here. Whoever owns the tables can cut the chain and write a checkpoint that says so.
If there is a key, they cannot sign the ledger's end, which is locked if the bucket can lock.
"""

import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Action
from inference_store.erasure.hash_chain import Link, VerificationFailure, compute_hash
from inference_store.index.audit import match_uids
from inference_store.index.tables import audit, audit_head, audit_link

GENESIS: Final = Link(0, bytes(32))
"""The link before the first entry."""
# As Postgres writes JSONB: the same text for the same value.
DETAIL = cast(audit.c.detail, Text).label("written")
FIXED = tuple(
    audit.c[name] for name in ("id", "at", "actor", "client", "action", "model", "model_id")
)


def hash_values(salt: bytes, uid: UUID | None, written: str) -> bytes:
    """Return the hash of an entry's values; without the salt nobody can guess them."""
    return compute_hash([None if uid is None else str(uid), written], after=salt)


def hash_link(previous: Link, row: Any, values_hash: bytes) -> bytes:
    """Return the hash of the link after `previous`, which covers an entry."""
    fixed = {column.name: getattr(row, column.name) for column in FIXED}
    fixed["at"] = row.at.astimezone(UTC).isoformat()
    content = {**fixed, "number": previous.number + 1, "values": values_hash.hex()}
    return compute_hash(content, after=previous.hash)


_SALT_BYTES = 16


async def link_entries(connection: AsyncConnection, *, limit: int) -> int:
    """Number and link the oldest entries that are not linked, at most `limit`; return how many.

    Two writers wait for each other at the head. An entry that is being erased from is waited for.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    query = select(*FIXED, audit.c.uid, audit.c.taken_by, DETAIL).where(audit.c.number.is_(None))
    rows = await connection.execute(query.order_by(audit.c.id).limit(limit).with_for_update())
    end, links = Link(head.number, head.hash), []
    for row in rows:
        salt = os.urandom(_SALT_BYTES)
        values_hash = hash_values(salt, row.uid, row.written)
        end = Link(end.number + 1, hash_link(end, row, values_hash))
        stored_salt = salt if row.taken_by is None else None
        link = {"number": end.number, "entry": row.id, "salt": stored_salt}
        links.append(link | {"values_hash": values_hash, "hash": end.hash})
    if links:
        await connection.execute(insert(audit_link), links)
        numbered = update(audit).where(
            audit.c.id == audit_link.c.entry, audit_link.c.number > head.number
        )
        await connection.execute(numbered.values(number=audit_link.c.number))
        await connection.execute(update(audit_head).values(number=end.number, hash=end.hash))
    return len(links)


async def measure_unlinked(connection: AsyncConnection) -> float:
    """Return the age of the oldest entry that has no number yet, in seconds; 0 if all have."""
    age = func.extract("epoch", func.now() - func.min(audit.c.at))
    seconds = await connection.scalar(select(age).where(audit.c.number.is_(None)))
    return max(0.0, float(seconds or 0))


# `number`, `hash`, `cut`, `cut_hash`, `at`
Checkpoint = dict[str, Any]
# What one checkpoint lets retention cut.
_MOST_CUT: Final = 1_000_000


async def make_checkpoint(
    connection: AsyncConnection,
    *,
    every_seconds: float = 0.0,
    keep_seconds: float | None = None,
) -> Checkpoint | None:
    """Return a checkpoint of where the chain stands.

    It lets retention cut what is older than `keep_seconds`; None: nothing more. Return None if
    there is nothing more to cut, and the chain has not grown since the last one, or that is recent.
    """
    head = (await connection.execute(select(audit_head))).one()
    stood, cut = (GENESIS, GENESIS) if head.checkpoint is None else read_links(head.checkpoint)
    old = None if keep_seconds is None else await _find_last_old(connection, cut, keep_seconds)
    now = datetime.now(UTC)
    if old is None and (head.number == stood.number or _is_recent(head, now, every_seconds)):
        return None
    cut = old or cut
    return {
        "number": head.number,
        "hash": head.hash.hex(),
        "cut": cut.number,
        "cut_hash": cut.hash.hex(),
        "at": now.isoformat(),
    }


def _is_recent(head: Any, now: datetime, seconds: float) -> bool:
    if head.checkpoint is None:
        return False
    at = datetime.fromisoformat(head.checkpoint["at"])
    return (now - at).total_seconds() < seconds


async def _find_last_old(connection: AsyncConnection, cut: Link, seconds: float) -> Link | None:
    """Return the last link after the cut, before the first whose entry is recent enough to stay.

    A restored backup goes on after a gap of any width.
    """
    end = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    here = select(audit_link.c.number, audit_link.c.hash, audit.c.at)
    here = here.join_from(audit_link, audit, audit.c.id == audit_link.c.entry, isouter=True)
    next_ones = here.where(audit_link.c.number > cut.number).order_by(audit_link.c.number)
    page = next_ones.limit(_MOST_CUT).subquery()
    young = select(func.min(page.c.number)).where(page.c.at >= end).scalar_subquery()
    old = select(page.c.number, page.c.hash).where(page.c.number < func.coalesce(young, 2**62))
    row = (await connection.execute(old.order_by(page.c.number.desc()).limit(1))).first()
    return None if row is None else Link(row.number, row.hash)


def read_links(checkpoint: Checkpoint) -> tuple[Link, Link]:
    """Return where the chain stood, and up to where it may be cut."""
    return (
        Link(int(checkpoint["number"]), bytes.fromhex(checkpoint["hash"])),
        Link(int(checkpoint["cut"]), bytes.fromhex(checkpoint["cut_hash"])),
    )


async def apply_checkpoint(
    connection: AsyncConnection, body: Checkpoint, _: datetime, __: str
) -> Checkpoint:
    """Store a checkpoint as the newest.

    A restored Postgres that lacks the entries before it goes on after it: the numbers in between
    stay empty, and `verify` reports them.
    """
    stood = read_links(body)[0]
    await connection.execute(update(audit_head).values(checkpoint=body))
    behind = update(audit_head).where(audit_head.c.number < stood.number)
    await connection.execute(behind.values(number=stood.number, hash=stood.hash))
    return body


async def prune_entries(connection: AsyncConnection, *, limit: int) -> int:
    """Delete the oldest entries, at most `limit`, up to where the newest checkpoint says; return
    how many."""
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    _, cut = (GENESIS, GENESIS) if head.checkpoint is None else read_links(head.checkpoint)
    here = audit_link.c
    query = select(here.number, here.hash, here.entry).order_by(here.number)
    query = query.where(here.number > head.cut, here.number <= cut.number)
    page = (await connection.execute(query.limit(limit))).all()
    if head.cut < cut.number:
        last = Link(page[-1].number, page[-1].hash) if len(page) == limit else cut
        await connection.execute(text("SET LOCAL inference_store.audit = 'prune'"))
        entries = [row.entry for row in page]
        await connection.execute(delete(audit).where(audit.c.id == func.any(entries)))
        await connection.execute(delete(audit_link).where(here.number <= last.number))
        await connection.execute(text("SET LOCAL inference_store.audit = ''"))
        await connection.execute(update(audit_head).values(cut=last.number, cut_hash=last.hash))
    return len(page)


ACTOR: Final = "retention"
_REDACTED = 10_000


async def redact_values(
    connection: AsyncConnection, erasure: UUID, *, uids: Collection[UUID]
) -> int:
    """Remove `uid` and `detail` from every entry about these inferences; return how many.

    In the erasure's own transaction; repeatable. An entry of its own lists the redacted ones:
    values that are gone without being listed are a failure of the chain.
    """
    redacted = 0
    while uids and (entries := await _lock(connection, match_uids(uids))):
        redacted += await _redact(connection, erasure, entries)
    return redacted


def select_details() -> Select[Any]:
    """Select the entries whose detail may be redacted, with it."""
    return select(audit.c.id, audit.c.detail).where(
        _redactable(), audit.c.detail != literal({}, JSONB)
    )


async def redact_entries(
    connection: AsyncConnection, erasure: UUID, entries: Collection[int]
) -> int:
    """Redact these entries, but for those that are redacted already; return how many."""
    locked = await _lock(connection, audit.c.id == func.any(entries))
    return await _redact(connection, erasure, locked)


async def _redact(connection: AsyncConnection, erasure: UUID, entries: Sequence[int]) -> int:
    if not entries:
        return 0
    values = {"actor": ACTOR, "action": Action.AUDIT_VALUES_TAKEN.value}
    detail = {"erasure": str(erasure), "entries": entries}
    inserted = insert(audit).values(**values, detail=detail).returning(audit.c.id)
    by = (await connection.execute(inserted)).scalar_one()
    of_entries = update(audit).where(audit.c.id == func.any(entries))
    await connection.execute(of_entries.values(uid=None, detail={}, taken_by=by))
    of_links = update(audit_link).where(audit_link.c.entry == func.any(entries))
    await connection.execute(of_links.values(salt=None))
    return len(entries)


async def _lock(connection: AsyncConnection, about: ColumnElement[bool]) -> list[int]:
    """Lock entries, of many the first, and return those that nobody else has redacted."""
    query = select(audit.c.id).where(_redactable(), about).order_by(audit.c.id).limit(_REDACTED)
    return list((await connection.execute(query.with_for_update())).scalars())


def _redactable() -> ColumnElement[bool]:
    return audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)


# Verifies the chain, with the checkpoints that say where it stood and was cut.

MOST_FAILURES = 1_000


@dataclass(frozen=True, slots=True)
class Copy:
    """A checkpoint, and where it is; `is_signed`: a signed end of the ledger comes after it."""

    location: str
    checkpoint: Checkpoint
    is_signed: bool = False


@dataclass(slots=True)
class Verdict:
    """The verified part of the chain, and the failures: of many the first thousand.

    `first`: the first number after what retention has cut; `end`: the last link that was read.
    """

    first: int
    end: Link
    linked: int = 0
    unlinked: int = 0
    redacted: int = 0
    checkpoints: int = 0
    signed: int = 0
    failures: list[VerificationFailure] = field(default_factory=list)

    def fail(self, number: int, reason: str) -> None:
        """Add a failure."""
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(VerificationFailure(number, reason))


def _read_checkpoints(verdict: Verdict, copies: Iterable[Copy], cut: int) -> dict[int, bytes]:
    """Return the hashes by number that the chain is compared with.

    Add what is wrong with a checkpoint, and a cut that none of them says.
    """
    hashes: dict[int, bytes] = {}
    cuts: dict[bool, int] = {}
    for copy in copies:
        verdict.checkpoints += 1
        verdict.signed += copy.is_signed
        try:
            stood, until = read_links(copy.checkpoint)
        except (KeyError, TypeError, ValueError):
            verdict.fail(0, f"its checkpoint in {copy.location} cannot be read")
            continue
        cuts[copy.is_signed] = max(cuts.get(copy.is_signed, 0), until.number)
        for link in (stood, until):
            if hashes.setdefault(link.number, link.hash) != link.hash:
                reason = f"its checkpoint in {copy.location} has another hash for it"
                verdict.fail(link.number, reason)
    if cut > cuts.get(True, cuts.get(False, 0)):
        subject = "nothing signed" if True in cuts else "no checkpoint"
        reason = f"the chain begins after it, and {subject} says that it was cut here"
        verdict.fail(cut, reason)
    return {number: hash for number, hash in hashes.items() if number >= cut}


_PAGE = 5_000


async def verify(connection: AsyncConnection, copies: Iterable[Copy] = ()) -> Verdict:
    """Verify the chain from where retention has cut it to its head, a page at a time.

    The connection's transaction is REPEATABLE READ, so that all is of one snapshot. `copies`:
    checkpoints that are stored elsewhere.
    """
    head = (await connection.execute(select(audit_head))).one()
    verdict = Verdict(first=head.cut + 1, end=GENESIS)
    own = [] if head.checkpoint is None else [Copy("Postgres", head.checkpoint)]
    hashes = _read_checkpoints(verdict, [*own, *copies], head.cut)
    verdict.end = Link(head.cut, hashes.get(head.cut, head.cut_hash))
    redactions: dict[int, frozenset[int]] = {}
    async for page in _read_pages(connection, head.cut):
        await _read_redactions(connection, page, redactions)
        for row in page:
            _verify_link(verdict, row, redactions, hashes)
    end = verdict.end.number
    if Link(head.number, head.hash) != verdict.end:
        reason = f"the chain ends at {end}, and its head is {head.number}: its tail was cut"
        verdict.fail(end + 1, reason)
    for number in sorted(number for number in hashes if number > end):
        verdict.fail(number, "a checkpoint stands beyond the chain's end: its tail was cut")
    await _find_outside(connection, verdict)
    return verdict


async def _read_pages(connection: AsyncConnection, after: int) -> AsyncIterator[list[Any]]:
    entry = [column.label(f"entry_{column.name}") for column in (audit.c.number, audit.c.detail)]
    columns = (*FIXED, audit.c.uid, audit.c.taken_by, DETAIL, *entry)
    joined = audit_link.outerjoin(audit, audit.c.id == audit_link.c.entry)
    query = select(audit_link, *columns).select_from(joined).order_by(audit_link.c.number)
    while page := list(
        await connection.execute(query.where(audit_link.c.number > after).limit(_PAGE))
    ):
        yield page
        after = page[-1].number


def _verify_link(
    verdict: Verdict, row: Any, redactions: dict[int, frozenset[int]], hashes: dict[int, bytes]
) -> None:
    """Verify one link. Whatever is wrong with it, the next one is compared with what it says."""
    expected = verdict.end.number + 1
    if row.number != expected:
        until = f"missing up to {row.number - 1}"
        verdict.fail(
            expected, f"{until}: links were removed, or Postgres was restored from an older backup"
        )
    elif row.id is None:
        verdict.fail(row.number, f"entry {row.entry} was removed")
    elif hash_link(verdict.end, row, row.values_hash) != row.hash:
        verdict.fail(row.number, f"entry {row.entry} or its link was changed")
    else:
        for sentence in _verify_values(row, redactions):
            verdict.fail(row.number, f"entry {row.entry}: {sentence}")
    if hashes.get(row.number, row.hash) != row.hash:
        verdict.fail(row.number, "its hash is not that of its checkpoint: the chain was made again")
    verdict.linked += 1
    verdict.redacted += row.taken_by is not None
    verdict.end = Link(row.number, row.hash)


def _verify_values(row: Any, redactions: dict[int, frozenset[int]]) -> Iterator[str]:
    if row.entry_number != row.number:
        yield f"it says that its place is {row.entry_number}"
    if row.taken_by is not None:
        if row.entry not in redactions.get(row.taken_by, ()):
            yield "its values are gone, and no entry says that an erasure removed them"
        if row.uid is not None or row.entry_detail != {}:
            yield "an erasure removed its values, and it has some"
    elif row.salt is None:
        yield "the salt of its values is gone"
    elif hash_values(row.salt, row.uid, row.written) != row.values_hash:
        yield "its values were changed"


async def _read_redactions(
    connection: AsyncConnection, page: list[Any], redactions: dict[int, frozenset[int]]
) -> None:
    ids = {row.taken_by for row in page if row.taken_by is not None}
    for stale in redactions.keys() - ids:
        del redactions[stale]
    missing = [id for id in ids if id not in redactions]
    query = select(audit.c.id, audit.c.detail).where(
        audit.c.id == func.any(missing), audit.c.action == Action.AUDIT_VALUES_TAKEN.value
    )
    if missing:
        for row in await connection.execute(query):
            redactions[row.id] = frozenset(row.detail.get("entries", ()))


async def _find_outside(connection: AsyncConnection, verdict: Verdict) -> None:
    joined = audit.outerjoin(audit_link, audit_link.c.entry == audit.c.id)
    forged = select(audit.c.id, audit.c.number).select_from(joined)
    forged = forged.where(audit.c.number.is_not(None), audit_link.c.number.is_(None))
    for row in await connection.execute(forged.limit(MOST_FAILURES)):
        verdict.fail(row.number, f"entry {row.id} says that this is its place, and no link does")
    waiting = select(func.count()).select_from(audit).where(audit.c.number.is_(None))
    verdict.unlinked = int(await connection.scalar(waiting) or 0)
