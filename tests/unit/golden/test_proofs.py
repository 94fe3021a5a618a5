"""The bytes of the three hash chains: ledger, certificates, audit. Fixed key, fixed times."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inference_store.erasure.audit_chain import hashes
from inference_store.erasure.certificates import anew, audit_checkpoints, documents, entries, head
from inference_store.erasure.certificates.chain import CERTIFICATE, KEY, Link
from inference_store.erasure.certificates.erased import Erased
from inference_store.erasure.certificates.keys import SigningKey
from inference_store.erasure.certificates.merkle import Tree, root_of
from inference_store.erasure.certificates.signed import Signed, canonical, signed
from inference_store.erasure.ledger.entry import Entry, Note, Said
from inference_store.inference.events import StorageKey

from .golden import check, written_bytes

SIGNS = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NEXT = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)
ODD = 'é\x7f"\\/\n\U0001f600'
ERASURE, HOLD, RUN = (UUID(int=number) for number in (1, 2, 3))
UIDS = [UUID("01900000-0000-7000-8000-000000000001"), UUID("01900000-0000-7000-8000-000000000002")]


def ledger_entries() -> list[Entry]:
    """Return a chain of two entries."""
    note = Note("policy_set", "a/b", {"rules": [1, ODD]})
    body = {"model_id": "a/b", "n": 10**400, "share": 0.25, "text": f"\ud800{ODD}", "none": None}
    said = [Said(body, note, "10.0.0.1", "00" * 16), Said({}, None, None, "11" * 16)]
    first = Entry(1, "policy_set", AT, "key:ops", "0" * 64, said[0].hash, said[0])
    return [first, Entry(2, "begun_anew", AT, "ledger", first.hash, said[1].hash, said[1])]


def test_ledger() -> None:
    found = ""
    for entry in ledger_entries():
        found += written_bytes(f"entry {entry.number} {entry.hash}", entry.encoded())
        found += written_bytes(f"entry {entry.number}, forgotten", entry.forgotten().encoded())
    check("ledger.txt", found)


def list_of_entries() -> list[bytes]:
    """Return a certificate's list: each scope, and objects."""
    keys = [StorageKey("bucket", "a/data"), StorageKey("bucket", "\udcff")]
    scopes = [entries.of_inference(SIGNS, scope, UIDS[0]) for scope in entries.LETTERS]
    return scopes + [entries.of_object(SIGNS, key) for key in keys]


def certificate(place: Link) -> dict[str, Any]:
    """Return the document of an erasure's certificate, issued at a fixed time."""
    asked = documents.Asked(
        id=ERASURE,
        model_ids=["a/b", ODD],
        cause="request",
        scope="inference",
        requested_at=AT,
        requested_by="key:ops",
        run=RUN,
        held={HOLD: 2},
        by=documents.without_values(SIGNS, {"filter": ODD, "inference_ids": ["1", "2"]}),
        decided_by=[{"policy": str(HOLD), "rule": 1}],
        given_up={"by": "key:ops", "holds": {str(HOLD): 1}},
    )
    later = AT + timedelta(seconds=1)
    erased = Erased([1], 3, 2, AT, later, [SIGNS.id], AT, later)
    counts = {"versions": 4, "bytes": 5, "rows": {"inference": 3}}
    remains = [{"where": "somewhere", "clear_at": None}]
    root = root_of(list_of_entries())
    return fixed(
        documents.certificate_of(asked, erased, counts, root, place=place, remains=remains)
    )


def fixed(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"issued_at": documents.instant(AT)}


def chain() -> list[Signed]:
    """Return a chain: a key, a certificate, and a key that restarts the chain."""
    key = signed(SIGNS, KEY, fixed(documents.key_of(SIGNS.public, place=Link(0, b""))))
    one = signed(SIGNS, CERTIFICATE, certificate(Link(1, key.hash)))
    again = documents.key_of(NEXT.public, place=Link(2, one.hash))
    said = {"by": "ops", "instead_of": SIGNS.id, "reason": ODD}
    return [key, one, signed(NEXT, KEY, fixed(again) | {anew.MEMBER: said})]


def test_certificates() -> None:
    found = "".join(
        written_bytes(f"{one.kind} {number} {one.hash.hex()}", one.text.encode())
        for number, one in enumerate(chain(), 1)
    )
    for number, entry in enumerate(list_of_entries()):
        tree = Tree(proving=number)
        for each in list_of_entries():
            tree.add(each)
        proof = " ".join(each.hex() for each in tree.proof())
        found += written_bytes(f"entry {number}, proved by {proof}", entry)
    found += written_bytes("root", root_of(list_of_entries()))
    found += written_bytes("public key", SIGNS.public.pem.encode())
    found += f"{head.KEY}\n{head.AUDIT_KEY}\n"
    check("certificates.txt", found)


def test_audit() -> None:
    row = SimpleNamespace(
        id=7,
        at=AT.astimezone(),
        actor="key:ops",
        client="10.0.0.1",
        action="policy.set",
        model=3,
        model_id=ODD,
    )
    values = hashes.of_values(bytes(16), UIDS[0], '{"a": 1, "é": null}')
    link = hashes.of_link(hashes.GENESIS, 1, row, values)
    document = {"reason": "head", "number": 1, "hash": link.hex(), "at": AT.isoformat()}
    document |= {"cut": 0, "previous": ""}
    point = signed(SIGNS, audit_checkpoints.KIND, document)
    found = {
        "values": values.hex(),
        "values without a uid": hashes.of_values(b"salt", None, "{}").hex(),
        "link": link.hex(),
        "checkpoint": point.text,
        "hash of the checkpoint": hashes.of_checkpoint(
            {"document": document, "kind": point.kind}
        ).hex(),
        "canonical": canonical(document),
    }
    check("audit.txt", "".join(written_bytes(name, each.encode()) for name, each in found.items()))
