"""The ledger: what is decided about deletion is in the bucket before it takes effect.

Postgres can be restored from an older backup, and would have forgotten the holds, policies and
erasures since. The bucket has not: every service compares the two, and refuses to work until
`replay` has given this database what it lacks.

A write has three steps. (1) A transaction computes the entry, tries its effect and takes that
back, and notes the entry's hash as intended. (2) The entry is put, only where none of its number
is. (3) A transaction gives it its effect and moves the head. A crash after the first step leaves a
note that no entry ever answers; after the second an entry that the note tells to be ours: the
next writer, or the next look, does the third step.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.index import audit, model_numbers
from inference_store.inference.errors import LedgerApart, Unavailable
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint

from . import apart, head
from .entries import Entries
from .entry import Body, Entry, Note, Said
from .forgetting import forget
from .head import Head
from .kinds import KINDS, Kind

Saying = Callable[[AsyncConnection], Awaitable[Body]]
Noting = Callable[[Any], Note]
# Each time another's entry, put by a request that outlived its process, was in the way.
_MOST_TRIES = 5
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Look:
    """What was found of a ledger: the head here, and whether the bucket goes on after it."""

    head: Head
    beyond: int | None


class Ledger:
    """Writes, compares and replays; shared by all of a process, which writes one at a time."""

    def __init__(
        self, engine: AsyncEngine, blobs: Blobs, *, prefix: str, kinds: Sequence[Kind] = KINDS
    ) -> None:
        self._engine = engine
        self.entries = Entries(blobs, prefix)
        self._kinds: Mapping[str, Kind] = {kind.name: kind for kind in kinds}
        self._one_at_a_time = asyncio.Lock()

    async def write(
        self,
        kind: str,
        body: Body | Saying,
        *,
        actor: str | Who,
        note: Noting | Note | None = None,
    ) -> Any:
        """Write an entry and give it its effect; answers what the kind's `apply` answers.

        The caller holds no connection. `body` may be a function of the connection that refuses
        (raises) before anything is written. `note`: what the audit says, or a function of the
        answer. Raises LedgerApart; BlobsAway, after which the entry may take effect later.
        """
        who = actor if isinstance(actor, Who) else Who(actor, None)
        async with self._turn() as connection:
            for _ in range(_MOST_TRIES):
                await self._settle(connection)
                entry = await self._intend(connection, self._kinds[kind], body, who, note)
                failpoint("ledger.put.before")
                is_ours = await asyncio.to_thread(self._put, entry)
                failpoint("ledger.put.after")
                if is_ours:
                    return await self._take_effect(connection, entry)
        raise Unavailable("Others were always faster to write to the ledger: try again.")

    async def look(self) -> Look:
        """Compare the bucket with this database. Raises LedgerApart, with the remedy; BlobsAway.

        An entry of ours that a crash has left without its effect is given it.
        """
        async with self._engine.connect() as connection:
            at = await head.read(connection)
        found = await asyncio.to_thread(self._compared, at)
        if found.beyond is None:
            return found
        # A writer may be at work: in our turn nobody is.
        async with self._turn() as connection:
            return await self._settle(connection)

    async def inspect(self) -> Look:
        """As `look`, and changes nothing: an entry that is to take effect still is no fault."""
        while True:
            async with self._engine.connect() as connection:
                at = await head.read(connection)
            found = await asyncio.to_thread(self._compared, at)
            if found.beyond is None:
                return found
            entry = await asyncio.to_thread(self._following, at, found.beyond)
            async with self._engine.connect() as connection:
                if await head.read(connection) != at:
                    continue  # a writer is at work
                ours = await head.intended(connection, at)
            if entry.hash not in ours:
                raise LedgerApart(apart.ahead(self.entries.place, at.number, entry))
            return found

    async def replay(
        self, *, skip_forgotten: bool = False, say: Callable[[Entry], None] = lambda _: None
    ) -> int:
        """Give this database the effect of every entry that it lacks, in order; how many.

        Each in a transaction of its own: one that is interrupted goes on where it was. Raises
        LedgerApart where the chain does not hold, or an entry no longer says what it said.
        """
        count = 0
        async with self._turn() as connection:
            while True:
                async with connection.begin():
                    at = await head.read(connection)
                found = await asyncio.to_thread(self._compared, at)
                if found.beyond is None:
                    return count
                entry = await asyncio.to_thread(self._following, at, found.beyond)
                if entry.said is None and not skip_forgotten:
                    raise LedgerApart(apart.forgotten(entry))
                await self._take_effect(connection, entry)
                say(entry)
                count += 1

    async def begin_anew(self, *, actor: str) -> Entry:
        """Go on, with the next number, under a prefix that is empty: in a new bucket, say.

        Raises LedgerApart where something lies there.
        """
        async with self._turn() as connection:
            async with connection.begin():
                at = await head.read(connection, lock=True)
                first = await asyncio.to_thread(self.entries.beyond, 0)
                if first is not None:
                    raise LedgerApart(apart.not_empty(self.entries.place, first))
                entry = _entry(at, "begun_anew", Who(actor, None), Said.anew({}, None, None))
                await head.intend(connection, entry)
            if not await asyncio.to_thread(self._put, entry):
                raise LedgerApart(apart.not_empty(self.entries.place, entry.number))
            await self._take_effect(connection, entry)
            return entry

    async def forget(self, *, older_than_seconds: float, limit: int = 20) -> int:
        """Let entries older than this forget what they said, at most so many; how many did."""
        return await forget(
            self._engine, self.entries, older_than_seconds=older_than_seconds, limit=limit
        )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[AsyncConnection]:
        """A connection for transactions that no entry comes between; one that a crash has left has
        its effect first. Raises LedgerApart; BlobsAway."""
        async with self._turn() as connection:
            await self._settle(connection)
            yield connection

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[AsyncConnection]:
        """A connection of our own that may write: no other process, no other task does."""
        async with self._one_at_a_time, self._engine.connect() as connection:
            try:
                async with connection.begin():
                    await head.take_turn(connection)
                yield connection
                async with connection.begin():
                    await head.give_back(connection)
            except BaseException:
                # its session ends, and with it the turn, whatever state it is in
                await connection.invalidate()
                raise

    async def _settle(self, connection: AsyncConnection) -> Look:
        """In our turn: give what a dead writer of ours has put its effect, and compare."""
        while True:
            async with connection.begin():
                at = await head.read(connection)
                ours = await head.intended(connection, at)
            found = await asyncio.to_thread(self._compared, at)
            if found.beyond is None:
                return found
            entry = await asyncio.to_thread(self._following, at, found.beyond)
            if entry.hash not in ours:
                raise LedgerApart(apart.ahead(self.entries.place, at.number, entry))
            _log.info("an entry left by a crash", action="ledger_settled", number=entry.number)
            await self._take_effect(connection, entry)

    def _compared(self, at: Head) -> Look:
        """What the bucket has at the head and after it. Raises LedgerApart; BlobsAway."""
        if at.number:
            entry = self.entries.get(at.number)
            if entry is None:
                raise LedgerApart(apart.behind(self.entries.place, at.number))
            if entry.hash != at.hash:
                raise LedgerApart(apart.foreign(self.entries.place, at.number))
        return Look(at, self.entries.beyond(at.number))

    def _following(self, at: Head, number: int) -> Entry:
        """The entry after the head. Raises LedgerApart where it is missing or follows another."""
        entry = self.entries.get(number) if number == at.number + 1 else None
        if entry is None:
            raise LedgerApart(apart.gap(self.entries.place, at.number + 1, number))
        if entry.previous != at.hash:
            raise LedgerApart(apart.foreign(self.entries.place, number))
        if entry.kind not in self._kinds:
            raise LedgerApart(apart.unknown_kind(entry, self._kinds))
        return entry

    async def _intend(
        self,
        connection: AsyncConnection,
        kind: Kind,
        body: Body | Saying,
        who: Who,
        note: Noting | Note | None,
    ) -> Entry:
        async with connection.begin():
            at = await head.read(connection, lock=True)
            said = Said.anew(body if isinstance(body, dict) else await body(connection), None, None)
            entry = _entry(at, kind.name, who, said)
            answer = None
            if kind.rehearsed:
                rehearsal = await connection.begin_nested()
                answer = await kind.apply(connection, said.body, entry.at, who.actor)
                await rehearsal.rollback()
            told = note(answer) if callable(note) else note
            said = Said.anew(said.body, told, who.client)
            entry = _entry(at, kind.name, who, said, entry.at)
            await head.intend(connection, entry)
        failpoint("ledger.intend.after")
        return entry

    def _put(self, entry: Entry) -> bool:
        """Whether the entry of this number is ours: also where the answer to the put was lost."""
        if self.entries.put(entry):
            return True
        there = self.entries.get(entry.number)
        return there is not None and there.hash == entry.hash

    async def _take_effect(self, connection: AsyncConnection, entry: Entry) -> Any:
        failpoint("ledger.effect.before")
        async with connection.begin():
            at = await head.read(connection, lock=True)
            if (at.number + 1, at.hash) != (entry.number, entry.previous):
                raise Unavailable("The ledger went on meanwhile: try again.")
            answer = None
            if entry.said is not None:
                apply = self._kinds[entry.kind].apply
                answer = await apply(connection, entry.said.body, entry.at, entry.actor)
                await _note(connection, entry, entry.said)
            await head.move(connection, entry)
        failpoint("ledger.effect.after")
        return answer


def _entry(at: Head, kind: str, who: Who, said: Said, now: datetime | None = None) -> Entry:
    now = now or datetime.now(UTC)
    return Entry(at.number + 1, kind, now, who.actor, at.hash, said.hash, said)


async def _note(connection: AsyncConnection, entry: Entry, said: Said) -> None:
    """The audit has it in the transaction of the effect, and so again after a replay."""
    if said.note is None:
        return
    model = None
    if (name := said.note.model_id) is not None:
        model = (await model_numbers.number_of(connection, name), name)
    who, action = Who(entry.actor, said.client), Action(said.note.action)
    await audit.note(connection, who, action, model=model, at=entry.at, **said.note.detail)
