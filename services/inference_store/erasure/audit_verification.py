"""Verifies the chain of the audit, with the checkpoints that say where it stood and was cut."""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Action
from inference_store.erasure.hash_chain import Link, VerificationFailure
from inference_store.index.tables import audit, audit_head, audit_link

from .audit_chain import DETAIL, FIXED, GENESIS, Checkpoint, hash_link, hash_values, read_links

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
