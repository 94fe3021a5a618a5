"""Looking whether the chain closes: every link, every entry beside it, every checkpoint."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.audit import Action
from inference_store.index.tables import audit, audit_checkpoint, audit_head, audit_link

from .beginning import Check, Checkpoints
from .hashes import DETAIL, FIXED, of_link, of_values
from .verdict import MOST_FAULTS, Verdict

_PAGE = 5_000


async def verify(
    connection: AsyncConnection,
    check: Check | None = None,
    anchors: Iterable[tuple[int, bytes]] = (),
    kept: Sequence[dict[str, Any]] = (),
) -> Verdict:
    """Walk the chain from where retention has cut it to its head, a page at a time.

    In one snapshot: the connection's transaction is REPEATABLE READ. `check` looks at the
    signatures of checkpoints; `anchors`: numbers and hashes that are kept elsewhere; `kept`:
    signed checkpoints of which the bucket has a copy.
    """
    head = (await connection.execute(select(audit_head))).one()
    verdict = Verdict(first=head.cut + 1)
    found = Checkpoints(verdict, check)
    found.add_kept(kept)
    found.add(await connection.execute(select(audit_checkpoint).order_by(audit_checkpoint.c.id)))
    hashes = found.hashes(anchors)
    verdict.head, verdict.head_hash = head.cut, found.start(head.cut)
    takers: dict[int, frozenset[int]] = {}
    async for page in _pages(connection, head.cut):
        await _takers(connection, page, takers)
        for row in page:
            _link(verdict, row, takers, hashes)
    if (head.number, head.hash) != (verdict.head, verdict.head_hash):
        said = f"the chain ends at {verdict.head}, and its head is {head.number}: its tail was cut"
        verdict.wrong(verdict.head + 1, said)
    for number in sorted(number for number in hashes if number > verdict.head):
        verdict.wrong(number, "a checkpoint stands beyond the chain's end: its tail was cut")
    await _outside(connection, verdict)
    return verdict


async def _pages(connection: AsyncConnection, after: int) -> AsyncIterator[list[Any]]:
    entry = [column.label(f"entry_{column.name}") for column in (audit.c.number, audit.c.detail)]
    columns = (*FIXED, audit.c.uid, audit.c.taken_by, DETAIL, *entry)
    joined = audit_link.outerjoin(audit, audit.c.id == audit_link.c.entry)
    query = select(audit_link, *columns).select_from(joined).order_by(audit_link.c.number)
    while page := list(
        await connection.execute(query.where(audit_link.c.number > after).limit(_PAGE))
    ):
        yield page
        after = page[-1].number


def _link(
    verdict: Verdict, row: Any, takers: dict[int, frozenset[int]], hashes: dict[int, bytes]
) -> None:
    """One link: whatever is wrong with it, the next is compared with what stands in it."""
    expected = verdict.head + 1
    if row.number != expected:
        until = f"missing up to {row.number - 1}"
        verdict.wrong(
            expected, f"{until}: links were removed, or Postgres was restored from an older backup"
        )
    elif row.id is None:
        verdict.wrong(row.number, f"entry {row.entry} was removed")
    elif of_link(verdict.head_hash, row.number, row, row.values_hash) != row.hash:
        verdict.wrong(row.number, f"entry {row.entry} or its link was changed")
    else:
        for sentence in _values(row, takers):
            verdict.wrong(row.number, f"entry {row.entry}: {sentence}")
    if hashes.get(row.number, row.hash) != row.hash:
        verdict.wrong(row.number, "its hash is not that of its checkpoint: the chain was made anew")
    verdict.linked += 1
    verdict.taken += row.taken_by is not None
    verdict.head, verdict.head_hash = row.number, row.hash


def _values(row: Any, takers: dict[int, frozenset[int]]) -> Iterator[str]:
    if row.entry_number != row.number:
        yield f"it says that its place is {row.entry_number}"
    if row.taken_by is not None:
        if row.entry not in takers.get(row.taken_by, ()):
            yield "its values are gone, and no entry says that an erasure took them"
        if row.uid is not None or row.entry_detail != {}:
            yield "an erasure took its values, and it has some"
    elif row.salt is None:
        yield "the salt of its values is gone"
    elif of_values(row.salt, row.uid, row.written) != row.values_hash:
        yield "its values were changed"


async def _takers(
    connection: AsyncConnection, page: list[Any], known: dict[int, frozenset[int]]
) -> None:
    """What the entries list that took values of this page's; of others nothing is kept."""
    wanted = {row.taken_by for row in page if row.taken_by is not None}
    for stale in known.keys() - wanted:
        del known[stale]
    missing = [each for each in wanted if each not in known]
    query = select(audit.c.id, audit.c.detail).where(
        audit.c.id == func.any(missing), audit.c.action == Action.AUDIT_VALUES_TAKEN.value
    )
    if missing:
        for row in await connection.execute(query):
            known[row.id] = frozenset(row.detail.get("entries", ()))


async def _outside(connection: AsyncConnection, verdict: Verdict) -> None:
    """Entries that the chain does not know: those that say they have a place, and the newest."""
    placed = audit.outerjoin(audit_link, audit_link.c.entry == audit.c.id)
    forged = select(audit.c.id, audit.c.number).select_from(placed)
    forged = forged.where(audit.c.number.is_not(None), audit_link.c.number.is_(None))
    for row in await connection.execute(forged.limit(MOST_FAULTS)):
        verdict.wrong(row.number, f"entry {row.id} says that this is its place, and no link does")
    waiting = select(func.count()).select_from(audit).where(audit.c.number.is_(None))
    verdict.unlinked = int(await connection.scalar(waiting) or 0)
