"""Merkle trees as RFC 6962 hashes them (section 2.1), grown leaf by leaf: a tree of any size takes
the memory of its height.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

_LEAF, _NODE = b"\0", b"\1"


class _Subtree(NamedTuple):
    """A complete subtree; `proved`: the leaf whose way to the root is wanted lies in it."""

    height: int
    hash: bytes
    proved: bool


@dataclass
class Tree:
    """Leaves from the left to the right; with `proving` also the proof of that leaf (from 0)."""

    proving: int | None = None
    size: int = 0
    _stack: list[_Subtree] = field(default_factory=list)
    _path: list[bytes] = field(default_factory=list)

    def add(self, entry: bytes) -> None:
        """One more leaf."""
        grown = _Subtree(0, leaf_hash(entry), self.size == self.proving)
        self.size += 1
        while self._stack and self._stack[-1].height == grown.height:
            grown = self._joined(self._stack.pop(), grown, self._path)
        self._stack.append(grown)

    def root(self) -> bytes:
        """The root of what was added so far."""
        return self._ended()[0]

    def proof(self) -> Sequence[bytes]:
        """The hashes beside the way from the leaf `proving` to the root, from below."""
        if self.proving is None or self.proving >= self.size:
            raise IndexError("there is no such leaf")
        return self._ended()[1]

    def _ended(self) -> tuple[bytes, Sequence[bytes]]:
        if not self._stack:
            return sha256().digest(), ()
        *left, last = self._stack
        path = list(self._path)
        for each in reversed(left):
            last = self._joined(each, last, path)
        return last.hash, path

    @staticmethod
    def _joined(left: _Subtree, right: _Subtree, path: list[bytes]) -> _Subtree:
        if left.proved:
            path.append(right.hash)
        elif right.proved:
            path.append(left.hash)
        hash = sha256(_NODE + left.hash + right.hash).digest()
        return _Subtree(left.height + 1, hash, left.proved or right.proved)


def leaf_hash(entry: bytes) -> bytes:
    """The hash of a leaf: of no node, whatever its entry."""
    return sha256(_LEAF + entry).digest()


def root_of(entries: Iterable[bytes]) -> bytes:
    """The root over all of them."""
    tree = Tree()
    for entry in entries:
        tree.add(entry)
    return tree.root()


def proves(entry: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from the entry, as leaf `index` of `size`, to the root."""
    if not 0 <= index < size:
        return False
    place, last, hash = index, size - 1, leaf_hash(entry)
    for beside in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            hash = sha256(_NODE + beside + hash).digest()
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            hash = sha256(_NODE + hash + beside).digest()
        place, last = place >> 1, last >> 1
    return last == 0 and hash == root
