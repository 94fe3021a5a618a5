"""Merkle trees as RFC 6962 hashes them (section 2.1), grown leaf by leaf: a tree of any size takes
the memory of its height.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

_LEAF, _NODE = b"\0", b"\1"


class _Subtree(NamedTuple):
    """A complete subtree; `proved`: it has the leaf that a proof is for."""

    height: int
    hash: bytes
    proved: bool


@dataclass
class MerkleTree:
    """A tree that grows from left to right; `proving`: the leaf (from 0) to prove."""

    proving: int | None = None
    size: int = 0
    _stack: list[_Subtree] = field(default_factory=list)
    _path: list[bytes] = field(default_factory=list)

    def add(self, entry: bytes) -> None:
        """Add a leaf."""
        grown = _Subtree(0, hash_leaf(entry), self.size == self.proving)
        self.size += 1
        while self._stack and self._stack[-1].height == grown.height:
            grown = self._join(self._stack.pop(), grown, self._path)
        self._stack.append(grown)

    def root(self) -> bytes:
        """Return the root of what was added so far."""
        return self._join_all()[0]

    def proof(self) -> Sequence[bytes]:
        """Return the hashes beside the path from the leaf `proving` to the root, from below."""
        if self.proving is None or self.proving >= self.size:
            raise IndexError("there is no such leaf")
        return self._join_all()[1]

    def _join_all(self) -> tuple[bytes, Sequence[bytes]]:
        if not self._stack:
            return sha256().digest(), ()
        *others, last = self._stack
        path = list(self._path)
        for subtree in reversed(others):
            last = self._join(subtree, last, path)
        return last.hash, path

    @staticmethod
    def _join(left: _Subtree, right: _Subtree, path: list[bytes]) -> _Subtree:
        if left.proved:
            path.append(right.hash)
        elif right.proved:
            path.append(left.hash)
        hash = sha256(_NODE + left.hash + right.hash).digest()
        return _Subtree(left.height + 1, hash, left.proved or right.proved)


def hash_leaf(entry: bytes) -> bytes:
    """Return the hash of a leaf, which differs from that of any node."""
    return sha256(_LEAF + entry).digest()


def compute_root(entries: Iterable[bytes]) -> bytes:
    """Return the root over all entries."""
    tree = MerkleTree()
    for entry in entries:
        tree.add(entry)
    return tree.root()


def is_proved(entry: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether the proof leads from the entry, as leaf `index` of `size`, to the root."""
    if not 0 <= index < size:
        return False
    position, last, hash = index, size - 1, hash_leaf(entry)
    for beside in proof:
        if last == 0:
            return False
        if position & 1 or position == last:
            hash = sha256(_NODE + beside + hash).digest()
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            hash = sha256(_NODE + hash + beside).digest()
        position, last = position >> 1, last >> 1
    return last == 0 and hash == root
