"""One entry of the ledger: what was decided, by whom, and the hash of the entry before it.

The entry's hash covers its content by a hash of its own, over a random salt too. So the content can
be removed from the bucket later, nobody can guess it from what stays, and the chain still holds.
"""

import json
import secrets
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from inference_store.erasure.log.canonical import canonical, compute_hash
from inference_store.erasure.log.hash_chain import Link

Body = dict[str, Any]
FORMAT = 1


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
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise DamagedEntry(f"format {document['format']} is not known; {FORMAT} is")
        content = None if document.get("forgotten") else _read_content(document)
        at = datetime.fromisoformat(document["at"])
        head = (document["number"], document["kind"], at, document["actor"], document["previous"])
        entry = Entry(*head, document["body_hash"], content)
        fault = _find_fault(entry, document["hash"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntry(f"it cannot be read: {type(error).__name__}") from error
    if fault is not None:
        raise DamagedEntry(fault)
    return entry


def _find_fault(entry: Entry, hash: object) -> str | None:
    """Return what the hashes of an entry do not match; None if they match."""
    if entry.hash != hash:
        return "its hash is not that of what it says"
    if entry.content is not None and entry.content.hash != entry.body_hash:
        return "its body was changed"
    return None


def _read_content(document: Body) -> Content:
    note = None if document["note"] is None else Note(*document["note"])
    return Content(document["body"], note, document["client"], document["salt"])


def _read_back(body: Body) -> Body:
    read: Body = json.loads(canonical(body))
    return read
