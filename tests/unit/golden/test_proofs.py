"""The bytes of the three hash chains: ledger, certificates, audit. Fixed key, fixed times."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inference_store.erasure import audit_chain, erased_lists, log
from inference_store.erasure.erased_lists import Erased, MerkleTree
from inference_store.erasure.hash_chain import Link, canonical
from inference_store.erasure.ledger_entries import Content, Entry, Note
from inference_store.erasure.log import (
    CERTIFICATE,
    RESTART,
    SignedDocument,
    SigningKey,
    make_key_document,
    sign_document,
)
from inference_store.erasure.progress import Erasure
from inference_store.export.erased import Download, ReachedExport
from inference_store.inference.events import StorageKey
from inference_store.platform.json_encoding import format_instant
from inference_store.retention.certifier import describe_exports, list_copies, make_certificate
from tests.unit.erasure.certify.test_matching import compute_root

from .golden import check, format_bytes

SIGNS = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NEXT = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
AT = datetime(2026, 11, 22, 4, 5, 6, 7, tzinfo=UTC)
ODD = 'é\x7f"\\/\n\U0001f600'
ERASURE, HOLD, RUN, EXPORT = (UUID(int=number) for number in (1, 2, 3, 4))
UIDS = [UUID("01900000-0000-7000-8000-000000000001"), UUID("01900000-0000-7000-8000-000000000002")]


def make_ledger_entries() -> list[Entry]:
    note = Note("policy_set", "a/b", {"rules": [1, ODD]})
    body = {"model_id": "a/b", "n": 10**400, "share": 0.25, "text": f"\ud800{ODD}", "none": None}
    contents = [Content(body, note, "10.0.0.1", "00" * 16), Content({}, None, None, "11" * 16)]
    first = Entry(1, "policy_set", AT, "key:ops", "0" * 64, contents[0].hash, contents[0])
    return [first, Entry(2, "begun_anew", AT, "ledger", first.hash, contents[1].hash, contents[1])]


def test_ledger() -> None:
    text = ""
    for entry in make_ledger_entries():
        text += format_bytes(f"entry {entry.number} {entry.hash}", entry.encode())
        text += format_bytes(f"entry {entry.number}, forgotten", entry.redact().encode())
    check("ledger.txt", text)


def make_entries() -> list[bytes]:
    """Return a certificate's list: each scope, and objects."""
    keys = [StorageKey("bucket", "a/data"), StorageKey("bucket", "\udcff")]
    scopes = [erased_lists.hash_inference(SIGNS, scope, UIDS[0]) for scope in erased_lists.LETTERS]
    return scopes + [erased_lists.hash_object(SIGNS, key) for key in keys]


def make_certificate_document(previous: Link) -> dict[str, Any]:
    """Return the document of an erasure's certificate, issued at a fixed time."""
    others: dict[str, Any] = dict.fromkeys(Erasure.model_fields)
    erasure = Erasure.model_construct(
        **others
        | {
            "id": ERASURE,
            "cause": "request",
            "scope": "inference",
            "state": "certifying",
            "requested_at": AT,
            "requested_by": "key:ops",
            "run": RUN,
            "asked": {"filter": ODD, "inference_ids": ["1", "2"]},
            "decided_by": [{"policy": str(HOLD), "rule": 1}],
            "given_up": {"by": "key:ops", "holds": {str(HOLD): 1}},
            "versions": 4,
            "bytes": 5,
            "table_rows": {"inference": 3},
        }
    )
    later = AT + timedelta(seconds=1)
    reader = Download(actor="key:reader", first_at=AT, last_at=later, parts=1)
    export = ReachedExport(EXPORT, 2, 1, [reader])
    exports = describe_exports([export], [])
    document = make_certificate(
        erasure,
        Erased([1], 3, 2, AT, later, [SIGNS.id], AT, later),
        SIGNS,
        compute_root(make_entries()),
        previous,
        model_ids=["a/b", ODD],
        held={HOLD: 2},
        earlier=[],
        exports=exports,
        remains=[{"where": "somewhere", "clear_at": None}, *list_copies(exports)],
    )
    return fix_time(document)


def fix_time(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"issued_at": format_instant(AT)}


def make_chain() -> list[SignedDocument]:
    """Return a chain: a key, a certificate, and a key that restarts the chain."""
    key = sign_document(
        SIGNS, log.KIND, fix_time(make_key_document(SIGNS.public, after=Link(0, b"")))
    )
    document = sign_document(SIGNS, CERTIFICATE, make_certificate_document(Link(1, key.hash)))
    again = make_key_document(NEXT.public, after=Link(2, document.hash))
    restart = {"by": "ops", "instead_of": SIGNS.id, "reason": ODD}
    return [
        key,
        document,
        sign_document(NEXT, log.KIND, fix_time(again) | {RESTART: restart}),
    ]


def _make_ends() -> dict[str, Any]:
    entry = make_ledger_entries()[-1]
    return {"ledger": entry.link.members, "signed": Link(3, make_chain()[-1].hash).members}


def test_certificates() -> None:
    text = "".join(
        format_bytes(f"{document.kind} {number} {document.hash.hex()}", document.text.encode())
        for number, document in enumerate(make_chain(), 1)
    )
    for number, entry in enumerate(make_entries()):
        tree = MerkleTree(proving=entry)
        for leaf in make_entries():
            tree.add(leaf)
        proof = " ".join(sibling.hex() for sibling in tree.proof())
        text += format_bytes(f"entry {number}, proved by {proof}", entry)
    text += format_bytes("root", compute_root(make_entries()))
    text += format_bytes("public key", SIGNS.public.pem.encode())
    head = sign_document(SIGNS, log.HEAD, {"at": format_instant(AT)} | _make_ends())
    text += format_bytes("head", head.text.encode())
    check("certificates.txt", text)


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
    values = audit_chain.hash_values(bytes(16), UIDS[0], '{"a": 1, "é": null}')
    link = audit_chain.hash_link(audit_chain.GENESIS, row, values)
    document = {"number": 1, "hash": link.hex(), "cut": 0, "cut_hash": "", "at": AT.isoformat()}
    texts = {
        "values": values.hex(),
        "values without a uid": audit_chain.hash_values(b"salt", None, "{}").hex(),
        "link": link.hex(),
        "canonical": canonical(document),
    }
    check("audit.txt", "".join(format_bytes(name, text.encode()) for name, text in texts.items()))
