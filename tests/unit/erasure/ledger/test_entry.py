"""An entry's hashes hold it together, also once it has forgotten what it said."""

import json
from datetime import UTC, datetime

import pytest

from inference_store.erasure.ledger.entry import Content, DamagedEntry, Entry, Note, decode

AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)


def make_entry(body: dict[str, object] | None = None, number: int = 3) -> Entry:
    note = Note("policy_set", "model", {"rules": [1]})
    content = Content.make(
        body or {"model_id": "a/b", "n": 10**400, "text": "\ud800"}, note, "10.0.0.1"
    )
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


def test_equal_entries_have_different_hashes() -> None:
    assert make_entry({"subject": "jane"}).body_hash != make_entry({"subject": "jane"}).body_hash


def test_detects_a_changed_head(subtests: pytest.Subtests) -> None:
    for name in ("number", "kind", "at", "actor", "previous", "body_hash", "hash"):
        with subtests.test(name):
            document = json.loads(make_entry().encode())
            other = {"number": 4, "at": AT.replace(year=2025).isoformat()}.get(name, "f" * 64)
            document[name] = other
            with pytest.raises(DamagedEntry):
                decode(json.dumps(document).encode())


def test_detects_a_changed_body(subtests: pytest.Subtests) -> None:
    for name in ("body", "note", "client", "salt"):
        with subtests.test(name):
            document = json.loads(make_entry().encode())
            document[name] = {"body": {}, "note": None, "client": None, "salt": ""}[name]
            with pytest.raises(DamagedEntry, match="body"):
                decode(json.dumps(document).encode())


def test_rejects_damaged_entries(subtests: pytest.Subtests) -> None:
    for data in (b"", b"[]", b"{}", b"null", b'{"format": 2}', b"\xff", b"[" * 100_000):
        with subtests.test(data=data), pytest.raises(DamagedEntry):
            decode(data)


def test_reports_a_deeply_nested_body_as_damaged() -> None:
    nested = b"[" * 50_000 + b"]" * 50_000
    with pytest.raises(DamagedEntry):
        decode(make_entry().encode().replace(b'"a/b"', nested))
