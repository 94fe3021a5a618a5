"""The chain of the audit: nobody can change, remove or cut entries without being noticed.

Each entry has a link: a hash over the link before it, over what is fixed in the entry (when, who,
from where, what, of which model) and over a salted hash of its values (the inference and the
detail). So an erasure can remove the values, and the chain stays valid.

Only one process links, after the commit, and no request waits for it. Whoever owns the tables can
cut the beginning off and write a checkpoint that says so. If there is a key, they cannot sign it:
each signed checkpoint says how far the chain had been cut by then, and names the one before it. The
newest is in the bucket too, locked if the bucket can lock.
"""

import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Delete,
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
from inference_store.erasure.hash_chain import START, Link, VerificationFailure, compute_hash
from inference_store.index.audit import match_uids
from inference_store.index.tables import audit, audit_checkpoint, audit_head, audit_link

from .mentions import mentions as mentioned

GENESIS_HASH = bytes(32)
"""The hash before the first entry."""
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


def hash_checkpoint(signed: dict[str, Any]) -> bytes:
    """Return the hash of a signed checkpoint, which the next one names."""
    return compute_hash(signed)


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


async def measure_unlinked(connection: AsyncConnection) -> tuple[int, float]:
    """Return how many entries have no number yet, and the age of the oldest in seconds."""
    age = func.extract("epoch", func.now() - func.min(audit.c.at))
    query = select(func.count(), func.coalesce(age, 0)).where(audit.c.number.is_(None))
    count, seconds = (await connection.execute(query)).one()
    return count, max(0.0, float(seconds))


Reason = Literal["cut", "head"]
# Returns the document with its signature, as it is stored; None: there is no key.
Sign = Callable[[dict[str, Any]], dict[str, Any] | None]


def unsigned(_: dict[str, Any]) -> None:
    """Sign nothing: there is no key, and the hash must do."""


async def make_checkpoint(
    connection: AsyncConnection, *, every_seconds: float = 0.0, sign: Sign = unsigned
) -> dict[str, Any] | None:
    """Return a checkpoint of where the chain stands, for the ledger.

    None if the chain has not grown since the last one, or if that is recent.
    """
    head = (await connection.execute(select(audit_head))).one()
    newest = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, every_seconds)
    columns = func.max(audit_checkpoint.c.number), func.max(audit_checkpoint.c.at) > newest
    last, recent = (await connection.execute(select(*columns))).one()
    if recent or head.number == (last or 0):
        return None
    document = _make_document("head", head.number, head.hash, datetime.now(UTC))
    return {**document, "signed": sign(await _add_order(connection, document, head.cut))}


async def apply_checkpoint(
    connection: AsyncConnection,
    body: Mapping[str, Any],
    at: datetime,
    actor: str,  # noqa: ARG001  (the ledger's signature)
) -> None:
    """Store a checkpoint.

    A restored Postgres that lacks the entries before it goes on after it: the numbers in between
    stay empty, and `verify` reports them.
    """
    number, hash = body["number"], bytes.fromhex(body["hash"])
    here = audit_checkpoint.c
    same = select(here.id).where(here.number == number, here.hash == hash)
    if await connection.scalar(same.limit(1)) is None:
        values = {"reason": "head", "number": number, "hash": hash, "signed": body["signed"]}
        await connection.execute(insert(audit_checkpoint).values(**values, at=at))
    behind = update(audit_head).where(audit_head.c.number < number)
    await connection.execute(behind.values(number=number, hash=hash))


async def prune_entries(
    connection: AsyncConnection, *, older_than_seconds: float, limit: int, sign: Sign = unsigned
) -> int:
    """Delete the oldest entries that are older than this, at most `limit`; return how many.

    A checkpoint keeps the hash of the last one deleted, so that the rest can be verified. An entry
    without a link stays until it has one.
    """
    head = (await connection.execute(select(audit_head).with_for_update())).one()
    last = await connection.scalar(_select_last_old(head.cut, older_than_seconds, limit))
    if last is None:
        return 0
    hash = await connection.scalar(select(audit_link.c.hash).where(audit_link.c.number == last))
    await connection.execute(text("SET LOCAL inference_store.audit = 'prune'"))
    old = select(audit_link.c.entry).where(audit_link.c.number <= last)
    await connection.execute(delete(audit).where(audit.c.id.in_(old)))
    links = await connection.execute(delete(audit_link).where(audit_link.c.number <= last))
    await connection.execute(_delete_spent(last))
    await connection.execute(text("SET LOCAL inference_store.audit = ''"))
    await connection.execute(update(audit_head).values(cut=last))
    await _note_cut(connection, last, hash or b"", sign)
    return links.rowcount


def _select_last_old(cut: int, older_than_seconds: float, limit: int) -> Any:
    """Select the last of the first `limit` numbers after the cut, before the first that is recent
    enough to stay. A restored backup goes on after a gap of any width."""
    end = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    here = select(audit_link.c.number, audit.c.at)
    here = here.join_from(audit_link, audit, audit.c.id == audit_link.c.entry, isouter=True)
    next_ones = here.where(audit_link.c.number > cut).order_by(audit_link.c.number)
    page = next_ones.limit(limit).subquery()
    young = select(func.min(page.c.number)).where(page.c.at >= end).scalar_subquery()
    return select(func.max(page.c.number)).where(page.c.number < func.coalesce(young, 2**62))


def _delete_spent(last: int) -> Delete:
    """Delete the checkpoints whose entries are gone: only the first ones, because each names the
    one before it."""
    here, later = audit_checkpoint.c, audit_checkpoint.alias().c
    first_needed = select(func.min(later.id)).where(later.number >= last).scalar_subquery()
    spent = delete(audit_checkpoint).where(here.number < last)
    return spent.where(here.id < func.coalesce(first_needed, 2**62))


async def _note_cut(connection: AsyncConnection, number: int, hash: bytes, sign: Sign) -> None:
    at = datetime.now(UTC)
    signed = sign(await _add_order(connection, _make_document("cut", number, hash, at), number))
    values = {"reason": "cut", "number": number, "hash": hash, "at": at}
    await connection.execute(insert(audit_checkpoint).values(**values, signed=signed))


def _make_document(reason: Reason, number: int, hash: bytes, at: datetime) -> dict[str, Any]:
    return {"reason": reason, "number": number, "hash": hash.hex(), "at": at.isoformat()}


async def _add_order(
    connection: AsyncConnection, document: dict[str, Any], cut: int
) -> dict[str, Any]:
    """Add how far the chain was cut by then, and the hash of the signed checkpoint before it, so
    that none can be removed or inserted."""
    newest = await find_newest_signed(connection)
    previous = "" if newest is None else hash_checkpoint(newest).hex()
    return {**document, "cut": cut, "previous": previous}


async def find_newest_signed(connection: AsyncConnection) -> dict[str, Any] | None:
    """Return the newest signed checkpoint, with its signature; None if there is none."""
    here = audit_checkpoint.c
    query = select(here.signed).where(func.jsonb_typeof(here.signed) == "object")
    signed = await connection.scalar(query.order_by(here.id.desc()).limit(1))
    return None if signed is None else dict(signed)


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
    while uids and (entries := await _find_about(connection, uids)):
        redacted += await _redact(connection, erasure, entries)
    return redacted


async def redact_mentions(
    connection: AsyncConnection,
    erasure: UUID,
    subject: tuple[str, str],
    is_in_reach: ColumnElement[bool],
    *,
    after: int,
    limit: int,
) -> tuple[int, int | None]:
    """Redact the entries in reach whose detail mentions a subject (its key and value), in the
    `limit` entries after `after`.

    Return how many, and the last entry that was read; None if none is left. An erasure reads all
    entries in its reach once, each page in a transaction of its own.
    """
    has_detail = audit.c.detail != literal({}, JSONB)
    query = select(audit.c.id, audit.c.detail).where(_redactable(), audit.c.id > after, has_detail)
    query = query.where(is_in_reach)
    page = (await connection.execute(query.order_by(audit.c.id).limit(limit))).all()
    if not page:
        return 0, None
    entries = [row.id for row in page if mentioned(row.detail, *subject)]
    redacted = await _redact(connection, erasure, await _lock(connection, entries))
    return redacted, page[-1].id


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


async def _find_about(connection: AsyncConnection, uids: Collection[UUID]) -> list[int]:
    query = (
        select(audit.c.id)
        .where(_redactable(), match_uids(uids))
        .order_by(audit.c.id)
        .limit(_REDACTED)
    )
    return list((await connection.execute(query.with_for_update())).scalars())


async def _lock(connection: AsyncConnection, entries: Sequence[int]) -> list[int]:
    """Lock entries, and return those that nobody else has redacted meanwhile."""
    if not entries:
        return []
    query = (
        select(audit.c.id)
        .where(_redactable(), audit.c.id == func.any(entries))
        .order_by(audit.c.id)
    )
    return list((await connection.execute(query.with_for_update())).scalars())


def _redactable() -> ColumnElement[bool]:
    return audit.c.taken_by.is_(None) & (audit.c.action != Action.AUDIT_VALUES_TAKEN.value)


MOST_FAILURES = 1_000


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


# Verifies the checkpoints of the audit, and finds out where its chain begins.
#
# Whoever owns the tables can cut the beginning off and write a checkpoint that says so. If there is
# a key, they cannot sign it: each signed checkpoint says how far the chain had been cut by then,
# and names the one before it. The newest is in the bucket too, locked if the bucket can lock.

# Returns what is wrong with what was signed; None: nothing.
Check = Callable[[dict[str, Any]], str | None]


class CheckpointHistory:
    """The checkpoints of Postgres and of the bucket; adds their failures to the verdict."""

    def __init__(self, verdict: Verdict, check: Check | None) -> None:
        self._verdict = verdict
        self._check = check
        self._hashes: dict[int, bytes] = {}
        self._cut: set[int] = set()
        self._signed_cuts: set[int | None] = set()
        self._previous: dict[str, Any] | None = None

    def add_copies(self, copies: Sequence[dict[str, Any]]) -> None:
        """Verify signed checkpoints that the bucket has."""
        for signed in copies:
            document = signed.get("document") or {}
            number = int(document.get("number", 0))
            if (fault := None if self._check is None else self._check(signed)) is not None:
                self._verdict.fail(number, f"its checkpoint in the bucket is false: {fault}")
            else:
                self._add_hash(number, bytes.fromhex(document["hash"]))
                self._signed_cuts.add(document.get("cut"))

    def add(self, rows: Iterable[Any]) -> None:
        """Verify the checkpoints that Postgres has, in order."""
        for row in rows:
            self._verdict.checkpoints += 1
            if row.reason == "cut":
                self._cut.add(row.number)
            if row.signed is not None:
                self._verdict.signed += 1
                self._add_signed(row)
            self._add_hash(row.number, row.hash)

    def collect_hashes(self, anchors: Iterable[Link]) -> dict[int, bytes]:
        """Return the hashes by number that the chain can still be compared with."""
        for link in anchors:
            if self._hashes.setdefault(link.number, link.hash) != link.hash:
                reason = "the ledger has another hash for it than its checkpoint here"
                self._verdict.fail(link.number, reason)
        first = self._verdict.first
        return {number: hash for number, hash in self._hashes.items() if number >= first - 1}

    def find_start(self, cut: int) -> Link:
        """Return the link that the chain begins after."""
        if cut and cut not in self._cut:
            reason = "the chain begins after it, and no checkpoint says that it was cut here"
            self._verdict.fail(cut, reason)
        elif cut and self._signed_cuts and cut not in self._signed_cuts:
            reason = "the chain begins after it, and nothing signed says that it was cut here"
            self._verdict.fail(cut, reason)
        return Link(cut, self._hashes.get(cut, GENESIS_HASH))

    def _add_signed(self, row: Any) -> None:
        fault = self._find_fault(row)
        previous, self._previous = self._previous, row.signed
        if fault is not None:
            at = f"{row.at:%Y-%m-%d %H:%M}"
            self._verdict.fail(row.number, f"its checkpoint of {at} is false: {fault}")
            return
        document = row.signed["document"]
        self._signed_cuts.add(document.get("cut"))
        if previous is not None and document.get("previous") != hash_checkpoint(previous).hex():
            reason = (
                "the signed checkpoint before its own is missing: it was removed, or Postgres was"
                " restored from an older backup"
            )
            self._verdict.fail(row.number, reason)

    def _find_fault(self, row: Any) -> str | None:
        document = row.signed.get("document") or {}
        signed = document.get("number"), document.get("hash"), document.get("reason")
        if signed != (row.number, row.hash.hex(), row.reason):
            return "what was signed is something else"
        return None if self._check is None else self._check(row.signed)

    def _add_hash(self, number: int, hash: bytes) -> None:
        if self._hashes.setdefault(number, hash) != hash:
            self._verdict.fail(number, "two checkpoints have different hashes for it")


_PAGE = 5_000


async def verify(
    connection: AsyncConnection,
    check: Check | None = None,
    anchors: Iterable[Link] = (),
    copies: Sequence[dict[str, Any]] = (),
) -> Verdict:
    """Verify the chain from where retention has cut it to its head, a page at a time.

    The connection's transaction is REPEATABLE READ, so that all is of one snapshot. `check`
    verifies the signatures of checkpoints; `anchors`: links that are stored elsewhere; `copies`:
    signed checkpoints that the bucket has too.
    """
    head = (await connection.execute(select(audit_head))).one()
    verdict = Verdict(first=head.cut + 1, end=START)
    history = CheckpointHistory(verdict, check)
    history.add_copies(copies)
    history.add(await connection.execute(select(audit_checkpoint).order_by(audit_checkpoint.c.id)))
    hashes = history.collect_hashes(anchors)
    verdict.end = history.find_start(head.cut)
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
