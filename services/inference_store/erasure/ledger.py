"""The ledger: what is decided about deletion is in the bucket before it takes effect.

Postgres can be restored from an older backup, and lacks the holds, policies and erasures since
then. The bucket has them: every service compares the two, and refuses to work until `replay` has
given this database what it lacks.

A write has three steps. (1) A transaction computes the entry, tries its effect and rolls that
back, and notes the entry's hash as intended. (2) The entry is put, unless there is one of its
number. (3) A transaction gives it its effect and moves the head. A crash after the first step
leaves a note that no entry ever answers. A crash after the second step leaves an entry which that
note shows to be ours: the next writer, or the next comparison, does the third step.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import ledger_entries
from inference_store.erasure.hash_chain import Link
from inference_store.erasure.ledger_entries import (
    BEGUN_ANEW,
    KINDS,
    Body,
    Content,
    Entries,
    Entry,
    Kind,
    Note,
)
from inference_store.index import api_keys, audit, model_numbers, web_sessions
from inference_store.index.database import is_transient
from inference_store.index.tables import ledger_head, ledger_intent, ledger_outbox
from inference_store.inference.errors import LedgerDiverged, ObjectStoreUnavailable, Unavailable
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import LEDGER_APART

MakeBody = Callable[[AsyncConnection], Awaitable[Body]]
MakeNote = Callable[[Any], Note]
ListUnwritten = Callable[[Entry], AsyncIterator[tuple[str, Body]]]
# Each failure is an entry of another process, put by a request that outlived that process.
_MOST_TRIES = 5
COMPARE_SECONDS = 30.0
_SOON_SECONDS = 1.0
_LOCK = 7_302_009
_log = structlog.get_logger()


class Ledger:
    """Writes, compares and replays; shared by all of a process, which writes one at a time."""

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, *, prefix: str, kinds: Sequence[Kind] = KINDS
    ) -> None:
        self.engine = engine
        self.blobs = blobs
        self.entries = Entries(blobs, prefix)
        self._kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}
        self._lock = asyncio.Lock()

    async def write(
        self,
        kind: str,
        body: Body | MakeBody,
        *,
        actor: str | Who,
        note: MakeNote | Note | None = None,
    ) -> Any:
        """Write an entry and give it its effect; return what the kind's `apply` returns.

        The caller holds no connection. `body` may be a function of the connection that refuses
        (raises) before anything is written. `note`: the audit entry, or a function of the result.
        Raises LedgerDiverged; ObjectStoreUnavailable, after which the entry may take effect later.
        """
        who = actor if isinstance(actor, Who) else Who(actor, None)
        async with self._turn() as connection:
            return await self._write(connection, kind, body, who, note)

    async def compare(self, *, settle: bool = True) -> Link:
        """Compare the bucket with this database; return the last entry of both.

        An entry of ours that a crash has left without its effect is given it; without `settle`
        nothing is changed, and it is no fault. Raises LedgerDiverged, with the remedy;
        ObjectStoreUnavailable.
        """
        while True:
            async with self.engine.connect() as connection:
                head = await ledger_entries.read_head(connection)
            entry = await self._find_following(head)
            if entry is None:
                return head
            # A writer may be at work: in our turn nobody is.
            if settle:
                async with self._turn() as connection:
                    return await self._settle(connection)
            async with self.engine.connect() as connection:
                if await ledger_entries.read_head(connection) == head:
                    await self._require_ours(connection, entry, head)
                    return head

    async def replay(
        self, *, skip_forgotten: bool = False, report: Callable[[Entry], None] = lambda _: None
    ) -> int:
        """Give this database the effect of every entry that it lacks, in order; return how many.

        Each takes effect in a transaction of its own, so that an interrupted replay goes on where
        it was. All sessions end, and API keys that the ledger does not know wait to be confirmed.
        Raises LedgerDiverged if the chain does not hold, or if an entry is redacted.
        """
        count = 0
        async with self._turn() as connection:
            while True:
                async with connection.begin():
                    head = await ledger_entries.read_head(connection)
                entry = await self._find_following(head)
                if entry is None:
                    return count
                if entry.content is None and not skip_forgotten:
                    raise LedgerDiverged(
                        f"Entry {entry.number} ({entry.kind}, {entry.at:%Y-%m-%d} UTC) has"
                        " forgotten what it said: this backup is older than"
                        " INFERENCE_STORE_LEDGER_VALUES_KEEP_SECONDS. Restore a newer one; or go on"
                        " without it by `inference-store ledger replay --skip-forgotten`, and set"
                        " again what it set."
                    )
                await self._take_effect(connection, entry, replayed=True)
                report(entry)
                count += 1

    async def restart(self, list_unwritten: ListUnwritten, *, actor: str) -> Entry:
        """Go on, with the next number, under a prefix that is empty: in a new bucket, for example;
        return the first entry there.

        `list_unwritten`: kinds and bodies that are written there in the same turn, so that nobody
        comes between, for this first entry. Repeated after a crash, it goes on where it was. Raises
        LedgerDiverged if the prefix holds another ledger.
        """
        who = Who(actor, None)
        async with self._turn() as connection:
            begun = await self._restart(connection, who)
            await self._settle(connection)
            async for kind, body in list_unwritten(begun):
                await self._write(connection, kind, body, who, None)
            return begun

    async def _restart(self, connection: AsyncConnection, who: Who) -> Entry:
        """Return the first entry under the prefix; if there is none, write it."""
        async with connection.begin():
            current = await ledger_entries.read_head(connection, lock=True)
            first = await asyncio.to_thread(self.entries.find_after, 0)
            if first is None:
                begun = _make_entry(current, BEGUN_ANEW, who, Content.make({}, None, None))
                await ledger_entries.intend(connection, begun)
            else:
                found = await asyncio.to_thread(self.entries.get, first)
                intended = await ledger_entries.find_intended(connection, current)
                is_known = first <= current.number
                is_ours = found is not None and (is_known or found.hash in intended)
                if found is None or found.kind != BEGUN_ANEW or not is_ours:
                    raise LedgerDiverged(_describe_not_empty(self.entries.location, first))
                if is_known:
                    return found
                begun = found
        if not await asyncio.to_thread(self._put, begun):
            raise LedgerDiverged(_describe_not_empty(self.entries.location, begun.number))
        await self._take_effect(connection, begun)
        return begun

    async def redact(self, *, older_than_seconds: float, limit: int = 20) -> int:
        """Remove the content of the oldest entries, at most `limit`; return how many.

        Their number, kind, time, actor and hashes stay, so that the chain still holds; no backup
        is left that a replay would have to bring up to date. An entry never changes otherwise, so
        this needs no lock: after a crash some entries are checked once more. What the object store
        does not delete (an older version is locked) is tried again. Raises ObjectStoreUnavailable.
        """
        async with self.engine.connect() as connection:
            after = await connection.scalar(select(ledger_head.c.forgotten)) or 0
            last = (await ledger_entries.read_head(connection)).number
        until = datetime.now(UTC) - timedelta(seconds=older_than_seconds)
        page = await asyncio.to_thread(self.entries.read_after, after, limit)
        old = [entry for entry in page if entry.at < until and entry.number <= last]
        kept = {kind.name for kind in self._kinds.values() if kind.kept}
        redacted = await asyncio.to_thread(_redact, self.entries, old, kept)
        if redacted:
            async with self.engine.begin() as connection:
                mark = ledger_head.update().values(forgotten=redacted[-1].number)
                await connection.execute(mark)
        return len(redacted)

    async def write_outbox(self) -> int:
        """Write what took effect at once, in its order; return how many entries. Raises as `write`.

        A crash writes one twice; the effect of each is that of the newest.
        """
        count, here = 0, ledger_outbox
        while True:
            async with self.engine.connect() as connection:
                query = select(here.c.kind, here.c.body, here.c.actor).order_by(here.c.number)
                row = (await connection.execute(query.limit(1))).first()
            if row is None:
                return count
            await self.write(row.kind, row.body, actor=row.actor)
            count += 1

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection]:
        """Yield a connection that alone may write: no other process does, and no other task."""
        async with self._lock, self.engine.connect() as connection:
            try:
                async with connection.begin():
                    await connection.execute(select(func.pg_advisory_lock(_LOCK)))
                yield connection
                async with connection.begin():
                    await connection.execute(select(func.pg_advisory_unlock(_LOCK)))
            except BaseException:
                # its session ends, and with it the lock, whatever state it is in
                await connection.invalidate()
                raise

    async def _write(
        self,
        connection: AsyncConnection,
        kind: str,
        body: Body | MakeBody,
        who: Who,
        note: MakeNote | Note | None,
    ) -> Any:
        for _ in range(_MOST_TRIES):
            await self._settle(connection)
            entry = await self._intend(connection, self._kinds[kind], body, who, note)
            failpoint("ledger.put.before")
            is_ours = await asyncio.to_thread(self._put, entry)
            failpoint("ledger.put.after")
            if is_ours:
                return await self._take_effect(connection, entry)
        raise Unavailable("Other writers to the ledger were always faster: try again.")

    async def _settle(self, connection: AsyncConnection) -> Link:
        """In our turn: give an entry of ours that a crash has left its effect, and compare."""
        while True:
            async with connection.begin():
                head = await ledger_entries.read_head(connection)
            entry = await self._find_following(head)
            if entry is None:
                return head
            async with connection.begin():
                await self._require_ours(connection, entry, head)
            _log.info("an entry left by a crash", action="ledger_settled", number=entry.number)
            await self._take_effect(connection, entry)

    async def _find_following(self, head: Link) -> Entry | None:
        return await asyncio.to_thread(find_following, self.entries, head, self._kinds)

    async def _require_ours(self, connection: AsyncConnection, entry: Entry, head: Link) -> None:
        if entry.hash in await ledger_entries.find_intended(connection, head):
            return
        raise LedgerDiverged(
            f"The ledger in {self.entries.location} goes on after entry {head.number}, the last one"
            f" that this database knows: entry {entry.number} ({entry.kind}) is of"
            f" {entry.at:%Y-%m-%d %H:%M} UTC. So this is an older backup: run `inference-store"
            " ledger replay`, which gives it the holds, policies and erasures since."
        )

    async def _intend(
        self,
        connection: AsyncConnection,
        kind: Kind,
        body: Body | MakeBody,
        who: Who,
        note: MakeNote | Note | None,
    ) -> Entry:
        async with connection.begin():
            current = await ledger_entries.read_head(connection, lock=True)
            made_body = body if isinstance(body, dict) else await body(connection)
            content = Content.make(made_body, None, None)
            now, answer = datetime.now(UTC), None
            if kind.rehearsed:
                rehearsal = await connection.begin_nested()
                answer = await kind.apply(connection, content.body, now, who.actor)
                await rehearsal.rollback()
            audit_note = note(answer) if callable(note) else note
            content = Content.make(content.body, audit_note, who.client)
            entry = _make_entry(current, kind.name, who, content, now)
            await ledger_entries.intend(connection, entry)
        failpoint("ledger.intend.after")
        return entry

    def _put(self, entry: Entry) -> bool:
        """Write an entry; True if the one of its number is ours, even if an answer was lost."""
        if self.entries.put(entry):
            return True
        existing = self.entries.get(entry.number)
        return existing is not None and existing.hash == entry.hash

    async def _take_effect(
        self, connection: AsyncConnection, entry: Entry, *, replayed: bool = False
    ) -> Any:
        failpoint("ledger.effect.before")
        async with connection.begin():
            current = await ledger_entries.read_head(connection, lock=True)
            if any(current.find_faults(entry.number, entry.previous)):
                raise Unavailable("The ledger went on meanwhile: try again.")
            answer = None
            if replayed:
                # before the effect, which may know a key
                passed_over = entry.content is None and entry.kind.startswith("key_")
                await api_keys.doubt(connection, known=passed_over)
                await web_sessions.end_all(connection)
            if (content := entry.content) is not None:
                apply = self._kinds[entry.kind].apply
                answer = await apply(connection, content.body, entry.at, entry.actor)
                await _write_note(connection, entry, content)
            moved = ledger_head.update().values(number=entry.number, hash=entry.hash)
            await connection.execute(moved)
            past = ledger_intent.c.number <= entry.number
            await connection.execute(ledger_intent.delete().where(past))
        failpoint("ledger.effect.after")
        return answer


class LedgerWatch:
    """The result of the last comparison; nothing may be served before there is one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lock = asyncio.Lock()
        self._compared_at: float | None = None
        self._apart: LedgerDiverged | None = None

    async def compare(self) -> None:
        """Compare them now.

        Raises LedgerDiverged; ObjectStoreUnavailable and the errors of the database, after which
        the last result stands.
        """
        async with self._lock:
            await self._compare()

    async def require(self) -> None:
        """Raise LedgerDiverged unless they agreed when last compared; compare if never done."""
        if self._compared_at is None:
            async with self._lock:
                if self._compared_at is None:
                    await self._compare()
        if self._apart is not None:
            raise self._apart

    async def compare_if_due(self) -> None:
        """Compare if the last comparison is long ago. Raises as `compare`."""
        now = time.monotonic()
        if self._apart or self._compared_at is None or now - self._compared_at >= COMPARE_SECONDS:
            await self.compare()

    async def reason(self) -> str | None:
        """Return why nothing is served; None if they agree."""
        if self._apart is not None:
            return self._apart.detail
        return "not compared with the bucket yet" if self._compared_at is None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Compare until stopped. An unavailable server is reported by whoever needs it."""
        while not stop.is_set():
            try:
                await self.compare()
            except LedgerDiverged:
                pass  # logged by `_compare`
            except Exception as error:
                if not isinstance(error, ObjectStoreUnavailable | OSError) and not is_transient(
                    error
                ):
                    raise
                _log.debug("the ledger is not compared", action="ledger", error=str(error)[:500])
            agree = self._compared_at is not None and self._apart is None
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), COMPARE_SECONDS if agree else _SOON_SECONDS)

    async def _compare(self) -> None:
        try:
            await self._ledger.compare()
        except LedgerDiverged as apart:
            _log.error("the ledger is apart", action="ledger_apart", detail=apart.detail)
            self._apart, self._compared_at = apart, time.monotonic()
            LEDGER_APART.set(1)
            raise
        self._apart, self._compared_at = None, time.monotonic()
        LEDGER_APART.set(0)


def find_following(entries: Entries, head: Link, kinds: Container[str]) -> Entry | None:
    """Return the entry of the bucket that follows the head; None if that is the last.

    Blocks. Raises LedgerDiverged, with the remedy, if the bucket lacks the head's entry or one
    after it, or if these are of another ledger or of an unknown kind; ObjectStoreUnavailable.
    """
    _require_head(entries, head)
    location = entries.location
    number = entries.find_after(head.number)
    if number is None:
        return None
    entry = entries.get(number) if number == head.number + 1 else None
    if entry is None:
        raise LedgerDiverged(
            f"{location} has entry {number} of the ledger, and not {head.number + 1}: entries were"
            " removed, or the ledger was restarted after this backup was made. Bring them back from"
            " a copy of the bucket."
        )
    if any(head.find_faults(entry.number, entry.previous)):
        raise LedgerDiverged(_describe_other_ledger(location, number))
    if entry.kind not in kinds:
        raise LedgerDiverged(
            f"Entry {number} is of the kind {entry.kind!r}, which this version does not know: run"
            " the version that wrote it, or a later one."
        )
    return entry


def _require_head(entries: Entries, head: Link) -> None:
    """Raise LedgerDiverged unless the bucket has the head's entry."""
    entry = entries.get(head.number) if head.number else None
    if entry is None and head.number:
        raise LedgerDiverged(
            f"{entries.location} has no entry {head.number} of the ledger, which this database"
            " knows. Is it the bucket and the prefix of before (INFERENCE_STORE_S3_BUCKET,"
            " INFERENCE_STORE_LEDGER_PREFIX)? Bring lost entries back from a copy; if the bucket is"
            " a new one, `inference-store ledger restart-chain`."
        )
    if entry is not None and entry.link != head:
        raise LedgerDiverged(_describe_other_ledger(entries.location, head.number))


def _make_entry(
    current: Link, kind: str, who: Who, content: Content, now: datetime | None = None
) -> Entry:
    now = now or datetime.now(UTC)
    return Entry(
        current.number + 1, kind, now, who.actor, current.hash.hex(), content.hash, content
    )


async def _write_note(connection: AsyncConnection, entry: Entry, content: Content) -> None:
    """Write the audit entry in the transaction of the effect, and so again after a replay."""
    note = content.note
    if note is None:
        return
    model = None
    if (name := note.model_id) is not None:
        model = (await model_numbers.number_of(connection, name), name)
    who, action = Who(entry.actor, content.client), Action(note.action)
    await audit.note(connection, who, action, model=model, at=entry.at, **note.detail)


def _redact(entries: Entries, old: list[Entry], kept: Container[str]) -> list[Entry]:
    for number, entry in enumerate(old):
        if entry.kind in kept or entry.content is None:
            continue
        if (fault := entries.redact(entry)) is not None:
            _log.warning("an entry of the ledger stays", action="ledger_kept", detail=fault)
            return old[:number]
    return old


def _describe_other_ledger(location: str, number: int) -> str:
    return (
        f"Entry {number} of the ledger in {location} is not the one that this database knows: it is"
        " the ledger of another store, or a backup of this one went on by itself. Give each"
        " store a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )


def _describe_not_empty(location: str, number: int) -> str:
    return (
        f"{location} holds entry {number} of a ledger already: a ledger is restarted in an empty"
        " bucket or under a prefix of its own (INFERENCE_STORE_LEDGER_PREFIX)."
    )
