"""One entry of the ledger: what was decided, by whom, and the hash of the entry before it.

The hash covers what was said by a hash of its own, over a random salt too: what was said can be
taken out of the bucket later, nobody can guess it from what stays, and the chain still holds.
"""

import hashlib
import json
import secrets
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

Body = dict[str, Any]
FORMAT = 1
CONTENT_TYPE = "application/json"


class Damaged(Exception):
    """An entry that cannot be read, or does not have the hash that it says."""


@dataclass(frozen=True, slots=True)
class Note:
    """What the audit says of an entry once it has taken effect."""

    action: str
    model_id: str | None
    detail: Body


@dataclass(frozen=True, slots=True)
class Said:
    """What an entry says: what may be forgotten of it. `client`: the address of who asked."""

    body: Body
    note: Note | None = None
    client: str | None = None
    salt: str = ""

    @classmethod
    def anew(cls, body: Body, note: Note | None, client: str | None) -> Self:
        """With a salt of its own; as it will be read back, so that a replay sees the same."""
        told = None if note is None else Note(note.action, note.model_id, _read_back(note.detail))
        return cls(_read_back(body), told, client, secrets.token_hex(16))

    @property
    def document(self) -> Body:
        """As it is written."""
        note = self.note
        shown = None if note is None else [note.action, note.model_id, note.detail]
        return {"body": self.body, "note": shown, "client": self.client, "salt": self.salt}

    @property
    def hash(self) -> str:
        """What stays of it for ever."""
        return _hash(self.document)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry; `said` is None once that was forgotten."""

    number: int
    kind: str
    at: datetime
    actor: str
    previous: str
    body_hash: str
    said: Said | None

    @property
    def hash(self) -> str:
        """The entry's own, which the next one names."""
        return _hash(self._head)

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

    def forgotten(self) -> "Entry":
        """The same without what it said."""
        return replace(self, said=None)

    def encoded(self) -> bytes:
        """As it lies in the bucket."""
        more = {"forgotten": True} if self.said is None else self.said.document
        return _canonical(self._head | {"hash": self.hash} | more)


def decode(data: bytes) -> Entry:
    """Read an entry. Raises Damaged where its hashes do not hold."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise Damaged(f"format {found['format']} is not known; {FORMAT} is")
        said = None if found.get("forgotten") else _said(found)
        at = datetime.fromisoformat(found["at"])
        head = (found["number"], found["kind"], at, found["actor"], found["previous"])
        entry = Entry(*head, found["body_hash"], said)
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"it cannot be read: {type(error).__name__}") from error
    if entry.hash != found["hash"]:
        raise Damaged("its hash is not that of what it says")
    if said is not None and said.hash != entry.body_hash:
        raise Damaged("its body was changed")
    return entry


def _said(found: Body) -> Said:
    note = None if found["note"] is None else Note(*found["note"])
    return Said(found["body"], note, found["client"], found["salt"])


def _read_back(body: Body) -> Body:
    read: Body = json.loads(_canonical(body))
    return read


def _canonical(document: Body) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(document: Body) -> str:
    return hashlib.sha256(_canonical(document)).hexdigest()
