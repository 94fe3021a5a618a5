"""Verifies the chain of the audit: every link, every entry beside it, every checkpoint."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.audit import Action
from inference_store.erasure.log.hash_chain import START, Link
from inference_store.index.tables import audit, audit_checkpoint, audit_head, audit_link

from .hashes import DETAIL, FIXED, GENESIS_HASH, hash_checkpoint, hash_link, hash_values
from .verdict import MOST_FAILURES, Verdict

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
        self._signed_cuts: set[int] = set()
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
                self._note_cut(document)

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
        self._note_cut(document)
        if previous is None or not any(_is_chained(signed) for signed in (previous, row.signed)):
            return
        if document.get("previous") != hash_checkpoint(previous).hex():
            reason = (
                "the signed checkpoint before its own is missing: it was removed, or Postgres was"
                " restored from an older backup"
            )
            self._verdict.fail(row.number, reason)

    def _note_cut(self, document: dict[str, Any]) -> None:
        """Note how far the chain was cut. Older ones say it only if they are about a cut."""
        cut = document["number"] if document.get("reason") == "cut" else None
        if (signed_cut := document.get("cut", cut)) is not None:
            self._signed_cuts.add(signed_cut)

    def _find_fault(self, row: Any) -> str | None:
        document = row.signed.get("document") or {}
        signed = document.get("number"), document.get("hash"), document.get("reason")
        if signed != (row.number, row.hash.hex(), row.reason):
            return "what was signed is something else"
        return None if self._check is None else self._check(row.signed)

    def _add_hash(self, number: int, hash: bytes) -> None:
        if self._hashes.setdefault(number, hash) != hash:
            self._verdict.fail(number, "two checkpoints have different hashes for it")


def _is_chained(signed: dict[str, Any]) -> bool:
    """Return whether it names the one before it; older ones do not."""
    return "previous" in (signed.get("document") or {})


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
    """Read which entries each list of redacted entries names, for this page; drop the other
    lists."""
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
    """Find entries that no link names: those that claim a number, and how many are new."""
    joined = audit.outerjoin(audit_link, audit_link.c.entry == audit.c.id)
    forged = select(audit.c.id, audit.c.number).select_from(joined)
    forged = forged.where(audit.c.number.is_not(None), audit_link.c.number.is_(None))
    for row in await connection.execute(forged.limit(MOST_FAILURES)):
        verdict.fail(row.number, f"entry {row.id} says that this is its place, and no link does")
    waiting = select(func.count()).select_from(audit).where(audit.c.number.is_(None))
    verdict.unlinked = int(await connection.scalar(waiting) or 0)
