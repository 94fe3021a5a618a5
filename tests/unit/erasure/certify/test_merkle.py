"""Trees as RFC 6962 has them, and proofs that hold for one leaf in one place alone."""

from hashlib import sha256

from inference_store.erasure.certify.merkle import MerkleTree, compute_root, is_proved

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
            tree = MerkleTree(proving=index)
            for leaf in entries:
                tree.add(leaf)
            proof = tree.proof()
            assert tree.root() == root, size
            assert is_proved(entry, index, size, proof, root), size
            assert not is_proved(b"x" * 33, index, size, proof, root), size
            assert not is_proved(entry, index, size, proof, sha256(root).digest()), size
            others = [other for other in range(size) if other != index]
            assert not any(is_proved(entry, other, size, proof, root) for other in others), size
            if proof:
                assert not is_proved(entry, index, size, proof[:-1], root), size
