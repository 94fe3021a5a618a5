"""An entry's hashes hold it together, also once it has forgotten what it said."""

import json
from datetime import UTC, datetime

import pytest

from inference_store.erasure.ledger_entries import Content, DamagedEntry, Entry, Note, decode

AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)


def make_entry(body: dict[str, object] | None = None, number: int = 3) -> Entry:
    note = Note("policy_set", "model", {"rules": [1]})
    body = body or {"model_id": "a/b", "n": 10**400, "text": "\ud800"}
    content = Content.make(body, note, "10.0.0.1")
    return Entry(number, "policy_set", AT, "key:ops", "0" * 64, content.hash, content)


def test_an_entry_is_read_back_as_written() -> None:
    entry = make_entry()
    assert decode(entry.encode()) == entry
    assert decode(entry.encode()).hash == entry.hash


def test_redacting_an_entry_keeps_its_hash() -> None:
    entry = make_entry({"subject": "jane@example.org"})
    less = decode(entry.redact().encode())
    assert (less.content, less.hash) == (None, entry.hash)
    assert b"jane" not in entry.redact().encode()
    assert b"10.0.0.1" not in entry.redact().encode()
    # equal entries have different hashes
    assert make_entry({"subject": "jane"}).body_hash != make_entry({"subject": "jane"}).body_hash


def test_detects_a_changed_member(subtests: pytest.Subtests) -> None:
    changes: dict[str, object] = dict.fromkeys(("kind", "actor", "previous"), "f" * 64)
    changes |= dict.fromkeys(("body_hash", "hash"), "f" * 64)
    changes |= {"number": 4, "at": AT.replace(year=2025).isoformat()}
    contents: dict[str, object] = {"body": {}, "note": None, "client": None, "salt": ""}
    for name, other in (changes | contents).items():
        document = json.loads(make_entry().encode()) | {name: other}
        reason = "body" if name in contents else "."
        with subtests.test(name), pytest.raises(DamagedEntry, match=reason):
            decode(json.dumps(document).encode())


def test_rejects_damaged_entries(subtests: pytest.Subtests) -> None:
    for data in (b"", b"[]", b"{}", b"null", b'{"format": 2}', b"\xff", b"[" * 100_000):
        with subtests.test(data=data), pytest.raises(DamagedEntry):
            decode(data)
    nested = b"[" * 50_000 + b"]" * 50_000
    with pytest.raises(DamagedEntry):
        decode(make_entry().encode().replace(b'"a/b"', nested))
