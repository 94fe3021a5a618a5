"""Verifies the chain of the audit: every link, every entry beside it, every checkpoint."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.audit import Action
from inference_store.erasure.log.hash_chain import START, Link
from inference_store.index.tables import audit, audit_checkpoint, audit_head, audit_link

from .checkpoint_history import Check, CheckpointHistory
from .hashes import DETAIL, FIXED, hash_link, hash_values
from .verdict import MOST_FAILURES, Verdict

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
