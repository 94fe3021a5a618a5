"""An entry's hashes hold it together, also once it has forgotten what it said."""

import json
from datetime import UTC, datetime

import pytest

from inference_store.erasure.ledger.entry import Damaged, Entry, Note, Said, decode

AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)


def entry(body: dict[str, object] | None = None, number: int = 3) -> Entry:
    note = Note("policy_set", "model", {"rules": [1]})
    said = Said.anew(body or {"model_id": "a/b", "n": 10**400, "text": "\ud800"}, note, "10.0.0.1")
    return Entry(number, "policy_set", AT, "key:ops", "0" * 64, said.hash, said)


def test_what_is_written_is_read_back() -> None:
    one = entry()
    assert decode(one.encoded()) == one
    assert decode(one.encoded()).hash == one.hash


def test_what_is_forgotten_leaves_the_chain_whole() -> None:
    one = entry({"subject": "jane@example.org"})
    less = decode(one.forgotten().encoded())
    assert (less.said, less.hash) == (None, one.hash)
    assert b"jane" not in one.forgotten().encoded()
    assert b"10.0.0.1" not in one.forgotten().encoded()


def test_the_same_said_twice_has_two_hashes() -> None:
    assert entry({"subject": "jane"}).body_hash != entry({"subject": "jane"}).body_hash


@pytest.mark.parametrize("name", ["number", "kind", "at", "actor", "previous", "body_hash", "hash"])
def test_a_changed_head_is_seen(name: str) -> None:
    document = json.loads(entry().encoded())
    other = {"number": 4, "at": AT.replace(year=2025).isoformat()}.get(name, "f" * 64)
    document[name] = other
    with pytest.raises(Damaged):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize("name", ["body", "note", "client", "salt"])
def test_a_changed_body_is_seen(name: str) -> None:
    document = json.loads(entry().encoded())
    document[name] = {"body": {}, "note": None, "client": None, "salt": ""}[name]
    with pytest.raises(Damaged, match="body"):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b'{"format": 2}', b"\xff"])
def test_what_is_no_entry_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged):
        decode(data)
