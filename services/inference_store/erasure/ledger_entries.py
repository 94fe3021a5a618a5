"""Entries of the ledger: their form, the bucket that has them, and how far this database is.

An entry says what was decided, by whom, and the hash of the entry before it; `ledger/0000000001`
is the first. Its hash covers its content by a hash of its own, over a random salt too. So the
content can be removed from the bucket later, nobody can guess it from what stays, and the chain
still holds. Signed documents and checkpoints of the audit stay whole.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import audit_chain, batches, holds, housekeeping, policies, requests
from inference_store.erasure.hash_chain import Link, canonical, compute_hash
from inference_store.erasure.held_deletions import apply_ended, apply_spared
from inference_store.erasure.quarantine import apply_removal
from inference_store.erasure.segment_copies import apply_copied, apply_given_up
from inference_store.index import api_keys
from inference_store.index.tables import ledger_head, ledger_intent
from inference_store.inference.errors import BlobMissing, LedgerDiverged
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs

Body = dict[str, Any]
FORMAT = 1
_DIGITS = 10
_MOST_BYTES = 64 * 1024 * 1024
_JSON = "application/json"
_PAGE = 1_000
_AT_ONCE = 32


class DamagedEntry(Exception):
    """An entry that cannot be read, or does not have the hash that it says."""


@dataclass(frozen=True, slots=True)
class Note:
    """The audit entry that is written once an entry has taken effect."""

    action: str
    model_id: str | None
    detail: Body


@dataclass(frozen=True, slots=True)
class Content:
    """The content of an entry, which may be redacted later. `client`: the address of who asked."""

    body: Body
    note: Note | None = None
    client: str | None = None
    salt: str = ""

    @classmethod
    def make(cls, body: Body, note: Note | None, client: str | None) -> Self:
        """Return content with a new salt, as it will be read back: a replay sees the same."""
        noted = None if note is None else Note(note.action, note.model_id, _read_back(note.detail))
        return cls(_read_back(body), noted, client, secrets.token_hex(16))

    @property
    def document(self) -> Body:
        """The members that are written."""
        note = self.note
        written = None if note is None else [note.action, note.model_id, note.detail]
        return {"body": self.body, "note": written, "client": self.client, "salt": self.salt}

    @property
    def hash(self) -> str:
        """The hash, in hexadecimal, which is never redacted."""
        return compute_hash(self.document).hex()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `content` is None once it was redacted."""

    number: int
    kind: str
    at: datetime
    actor: str
    previous: str
    body_hash: str
    content: Content | None

    @property
    def hash(self) -> str:
        """The entry's own, in hexadecimal, which the next one names."""
        return compute_hash(self._head).hex()

    @property
    def link(self) -> Link:
        """Its position in the chain."""
        return Link(self.number, bytes.fromhex(self.hash))

    @property
    def _head(self) -> Body:
        return {
            "format": FORMAT,
            "number": self.number,
            "kind": self.kind,
            "at": self.at.isoformat(),
            "actor": self.actor,
            "previous": self.previous,
            "body_hash": self.body_hash,
        }

    def redact(self) -> "Entry":
        """Return the same without its content."""
        return replace(self, content=None)

    def encode(self) -> bytes:
        """Return the bytes that are in the bucket."""
        more = {"forgotten": True} if self.content is None else self.content.document
        return canonical(self._head | {"hash": self.hash} | more).encode()


def decode(data: bytes) -> Entry:
    """Read an entry. Raises DamagedEntry if its hashes do not match what it says."""
    try:
        document, content = json.loads(data), None
        if document["format"] != FORMAT:
            raise DamagedEntry(f"format {document['format']} is not known; {FORMAT} is")
        if not document.get("forgotten"):
            note = None if document["note"] is None else Note(*document["note"])
            content = Content(document["body"], note, document["client"], document["salt"])
        at = datetime.fromisoformat(document["at"])
        head = (document["number"], document["kind"], at, document["actor"], document["previous"])
        entry = Entry(*head, document["body_hash"], content)
        if entry.hash != document["hash"]:
            raise DamagedEntry("its hash is not that of what it says")
        if content is not None and content.hash != entry.body_hash:
            raise DamagedEntry("its body was changed")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntry(f"it cannot be read: {type(error).__name__}") from error
    return entry


def _read_back(body: Body) -> Body:
    read: Body = json.loads(canonical(body))
    return read


class Entries:
    """Reads and writes entries. All but `iterate` blocks; all raises ObjectStoreUnavailable."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self._prefix = prefix
        # for messages
        self.location = f"s3://{self._bucket}/{prefix}"

    def key(self, number: int) -> StorageKey:
        """Return the key of the entry with a number."""
        return StorageKey(self._bucket, f"{self._prefix}{number:0{_DIGITS}}")

    def get(self, number: int) -> Entry | None:
        """Return one entry; None if there is none. Raises LedgerDiverged if it is damaged."""
        try:
            entry = decode(self._blobs.get(self.key(number), limit=2 * _MOST_BYTES))
            if entry.number != number:
                raise DamagedEntry(f"it says that it is number {entry.number}")
        except BlobMissing:
            return None
        except DamagedEntry as damaged:
            raise LedgerDiverged(
                f"The ledger's entry {self.key(number)} is damaged: {damaged}. Bring it"
                " back from a copy of the bucket."
            ) from damaged
        return entry

    def read_after(self, after: int, limit: int) -> list[Entry]:
        """Return the entries after a number, at most `limit`. Raises LedgerDiverged as `get`."""
        entries: list[Entry] = []
        number = self.find_after(after)
        while number is not None and len(entries) < limit:
            if (entry := self.get(number)) is None:
                break
            entries.append(entry)
            number += 1
        return entries

    async def iterate(self, after: int) -> AsyncIterator[tuple[int, Entry | LedgerDiverged | None]]:
        """Yield each number after one that is in the bucket, with its entry, or why it is damaged;
        None: it went meanwhile. They are listed, and read ahead a few at a time."""
        page_after = self.key(after).key
        while True:
            found = await asyncio.to_thread(
                self._blobs.page, self._bucket, self._prefix, after=page_after, limit=_PAGE
            )
            names = (each.place.key.removeprefix(self._prefix) for each in found)
            numbers = [int(name) for name in names if _is_number(name)]
            for start in range(0, len(numbers), _AT_ONCE):
                some = numbers[start : start + _AT_ONCE]
                reads = (asyncio.to_thread(self._read, number) for number in some)
                for pair in zip(some, await asyncio.gather(*reads), strict=True):
                    yield pair
            if len(found) < _PAGE:
                return
            page_after = found[-1].place.key

    def _read(self, number: int) -> Entry | LedgerDiverged | None:
        try:
            return self.get(number)
        except LedgerDiverged as damaged:
            return damaged

    def put(self, entry: Entry) -> bool:
        """Write an entry; return False, and write nothing, if there is one of its number.

        If the store does not support conditional writes, only the check before the write prevents
        that an entry is overwritten.
        """
        key, data = self.key(entry.number), entry.encode()
        if len(data) > _MOST_BYTES:
            raise ValueError(f"an entry has at most {_MOST_BYTES} bytes, not {len(data)}")
        return not self._blobs.exists(key) and self._blobs.put_new(key, data, content_type=_JSON)

    def redact(self, entry: Entry) -> str | None:
        """Overwrite an entry without its content, and delete its older versions; return why one of
        them stays, if so."""
        key = self.key(entry.number)
        faults = self._blobs.replace(key, entry.redact().encode(), content_type=_JSON)
        return f"{key}: {faults[0].code} {faults[0].message}" if faults else None

    def find_after(self, number: int) -> int | None:
        """Return the number of the first entry after this one; None if this is the last."""
        after = self.key(number).key
        page = self._blobs.page(self._bucket, self._prefix, after=after, limit=1)
        if not page:
            return None
        name = page[0].place.key.removeprefix(self._prefix)
        if not _is_number(name):
            raise LedgerDiverged(
                f"{self.location} holds {self._prefix + name!r}, which is no entry of a ledger:"
                " move it elsewhere, or choose another INFERENCE_STORE_LEDGER_PREFIX."
            )
        return int(name)


def _is_number(name: str) -> bool:
    return len(name) == _DIGITS and name.isascii() and name.isdigit()


async def read_head(connection: AsyncConnection, *, lock: bool = False) -> Link:
    """Return the last entry that has taken effect here, or START.

    `lock`: against other writers until the transaction ends.
    """
    query = select(ledger_head.c.number, ledger_head.c.hash)
    row = (await connection.execute(query.with_for_update() if lock else query)).one()
    return Link(row.number, bytes.fromhex(row.hash))


async def intend(connection: AsyncConnection, entry: Entry) -> None:
    """Note, before it is put, that an entry of the bucket is ours."""
    row = {"number": entry.number, "hash": entry.hash}
    await connection.execute(ledger_intent.insert().values(row))


async def find_intended(connection: AsyncConnection, after: Link) -> set[str]:
    """Return the hashes of the entries that were intended to follow the head."""
    here = ledger_intent.c
    query = select(here.hash).where(here.number == after.number + 1)
    return set((await connection.execute(query)).scalars())


# The kinds of entries: the one list of what is written to the ledger before it takes effect.

BEGUN_ANEW: Final = "begun_anew"
AUDIT_CHECKPOINT: Final = "audit_checkpoint"
Apply = Callable[[AsyncConnection, Body, datetime, str], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of entry.

    `apply(connection, body, at, actor)` gives an entry its effect, in a transaction of the caller.
    It names models by their ids, refuses nothing, and can be repeated. `rehearsed`: it is tried
    and rolled back before the entry is put, so that no entry is put that cannot be applied. `kept`:
    it never forgets what it says.
    """

    name: str
    sentence: str
    apply: Apply
    rehearsed: bool = True
    kept: bool = False


async def _apply_signed(connection: AsyncConnection, body: Body, at: datetime, actor: str) -> Any:
    # it takes cryptography, which the ingester does without
    from inference_store.erasure import erased_lists  # noqa: PLC0415

    return await erased_lists.apply_signed(connection, body, at, actor)


async def _do_nothing(_: AsyncConnection, body: Body, at: datetime, actor: str) -> None:
    """Do nothing: the entry is about the ledger itself."""


KINDS: Sequence[Kind] = (
    Kind(BEGUN_ANEW, "The ledger goes on in a new bucket or under a new prefix.", _do_nothing),
    Kind("policy_set", "A retention policy was set.", policies.apply_set),
    Kind("policy_removed", "A retention policy was removed.", policies.apply_set),
    Kind("policy_revoked", "A pending policy was withdrawn.", policies.apply_revoked),
    Kind("model_moved", "A model was moved to another project.", policies.apply_moved),
    Kind("model_removed", "A model was removed, and its policy.", housekeeping.apply_removed),
    Kind("hold_placed", "A legal hold was placed.", holds.apply_placed),
    Kind("hold_changed", "A hold was replaced by another one.", holds.apply_changed),
    Kind("hold_released", "A legal hold was released.", holds.apply_released),
    Kind(
        AUDIT_CHECKPOINT,
        "Where the audit's chain stood.",
        audit_chain.apply_checkpoint,
        kept=True,
    ),
    Kind("certificate", "What an erasure erased, signed.", _apply_signed, kept=True),
    Kind("certificate_key", "A key that signs from now on, signed.", _apply_signed, kept=True),
    Kind("erasure_requested", "An erasure was asked for.", batches.apply_requested),
    Kind(
        "erasure_batch",
        "Inferences, or orphans, are about to be marked for an erasure: their uids and objects.",
        batches.mark_batch,
        rehearsed=False,
    ),
    Kind(
        "quarantine_erased",
        "Dead letters or parked events are about to be erased: their rows and objects.",
        apply_removal,
        rehearsed=False,
    ),
    Kind(
        "erasure_spared",
        "Inferences that holds keep were taken out of erasures that had marked them: the uids.",
        apply_spared,
        rehearsed=False,
    ),
    Kind(
        "erasure_ended",
        "All that an erasure had marked was erased, but for what these holds keep.",
        apply_ended,
        rehearsed=False,
    ),
    Kind("erasure_cancelled", "An erasure was cancelled.", batches.apply_cancelled, False),
    Kind(
        "erasure_given_up",
        "What holds keep of an erasure was given up: the uids.",
        requests.apply_waiver,
        rehearsed=False,
    ),
    Kind("segment_copied", "What was left of a segment moved to a new one.", apply_copied),
    Kind("segment_copies_given_up", "Copies that did not end were given up.", apply_given_up),
    Kind("key_made", "An API key was made, or confirmed after a restore.", api_keys.apply_told),
    Kind("key_rotated", "An API key got a new text; its hash.", api_keys.apply_told),
    Kind("key_revoked", "An API key was revoked.", api_keys.apply_told),
)
