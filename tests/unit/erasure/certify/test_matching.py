"""What a certificate says, and to whom: only the holder of the key can match its request."""

from collections.abc import Iterable
from hashlib import sha256

import pytest

from inference_store.erasure.erased_lists import MerkleTree, is_proved
from inference_store.erasure.log import SignedDocument, hash_values, new_key, sign_document
from inference_store.erasure.proofs import KeyNotGiven, is_of_filter, is_of_subject
from inference_store.retention.certifier import Remaining

KEY, OTHER = new_key(), new_key()


def compute_root(entries: Iterable[bytes]) -> bytes:
    tree = MerkleTree()
    for entry in entries:
        tree.add(entry)
    return tree.root()


def make_certificate(**request: object) -> SignedDocument:
    return sign_document(KEY, "certificate", {"erasure": {"asked": hash_values(KEY, request)}})


def test_a_filter_as_it_was_written() -> None:
    certificate = make_certificate(filter="mail = 'a@b.org'", saved="{}")
    assert is_of_filter(certificate, [OTHER, KEY], "mail = 'a@b.org'")
    assert not is_of_filter(certificate, [KEY], "mail='a@b.org'")
    assert not is_of_subject(certificate, [KEY], "mail", "a@b.org")


def test_matches_a_subject_of_any_type() -> None:
    for type in (None, "string", "str"):
        certificate = make_certificate(subject={"key": "person_id", "type": type, "value": "p-1"})
        assert is_of_subject(certificate, [KEY], "person_id", "p-1"), type
        assert not is_of_subject(certificate, [KEY], "person_id", "p-2"), type
        assert not is_of_subject(certificate, [KEY], "person", "p-1"), type
        is_of_str = is_of_subject(certificate, [KEY], "person_id", "p-1", type="str")
        assert is_of_str == (type == "str"), type
        assert not is_of_filter(certificate, [KEY], "person_id = 'p-1'"), type


def test_requires_the_signing_key() -> None:
    certificate = make_certificate(filter="a = 1", saved="{}")
    with pytest.raises(KeyNotGiven, match=KEY.id):
        is_of_filter(certificate, [OTHER], "a = 1")
    by_ids = make_certificate(inference_ids=["a"])
    assert not is_of_filter(by_ids, [], "a = 1")


_SUBJECT = {"subject": {"key": "person", "type": None}}


def test_names_events_of_no_registered_model() -> None:
    for asked, is_named in (
        (None, False),
        ({"filter": "a = 1"}, False),
        (_SUBJECT, True),
        ({**_SUBJECT, "unattributed": "named"}, True),
        ({**_SUBJECT, "unattributed": "all"}, False),
    ):
        places = {place["where"]: place for place in Remaining(1, 1, 1).list_locations(asked)}
        named = places.get("dead letters and parked events of no registered model")
        assert (named is not None) == is_named, asked
        assert named is None or named["clear_at"] is None, asked


# The leaves of the test vectors of Certificate Transparency.
_LEAVES = " 00 10 2021 3031 40414243 5051525354555657 606162636465666768696a6b6c6d6e6f"
LEAVES = [bytes.fromhex(text) for text in _LEAVES.split(" ")]
ROOTS = {
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


def test_a_root() -> None:
    assert compute_root([]) == sha256().digest()
    for size, root in ROOTS.items():
        assert compute_root(LEAVES[:size]).hex() == root, size


def test_a_proof_holds_for_its_leaf_and_place_alone() -> None:
    for size in (1, 2, 3, 5, 7, 8, 21, 33):
        entries = [bytes([number]) * 33 for number in range(size)]
        root = compute_root(entries)
        for index, entry in enumerate(entries):
            tree = MerkleTree(proving=entry)
            for leaf in entries:
                tree.add(leaf)
            proof = tree.proof()
            assert (tree.root(), tree.index) == (root, index), size
            assert is_proved(entry, index, size, proof, root), size
            assert not is_proved(b"x" * 33, index, size, proof, root), size
            assert not is_proved(entry, index, size, proof, sha256(root).digest()), size
            others = [other for other in range(size) if other != index]
            assert not any(is_proved(entry, other, size, proof, root) for other in others), size
            if proof:
                assert not is_proved(entry, index, size, proof[:-1], root), size
