"""Where the chain over the audit begins, and what its checkpoints say of it.

Who owns the tables can cut the beginning off and write a checkpoint that says so. Where there is a
key he cannot sign it: each signed checkpoint says how far the chain had been cut by then, and names
the one before it; the newest is in the bucket too, locked where it can be.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .hashes import GENESIS, of_checkpoint
from .verdict import Verdict

# Answers what is wrong with what was signed; None: nothing.
Check = Callable[[dict[str, Any]], str | None]


class Checkpoints:
    """Those of Postgres and of the bucket; tells the verdict what is wrong with them."""

    def __init__(self, verdict: Verdict, check: Check | None) -> None:
        self._verdict = verdict
        self._check = check
        self._hashes: dict[int, bytes] = {}
        self._cut: set[int] = set()
        self._signed_cuts: set[int] = set()
        self._before: dict[str, Any] | None = None

    def add_kept(self, kept: Sequence[dict[str, Any]]) -> None:
        """Signed ones that the bucket has."""
        for signed in kept:
            document = signed.get("document") or {}
            number = int(document.get("number", 0))
            if (said := None if self._check is None else self._check(signed)) is not None:
                self._verdict.wrong(number, f"its checkpoint in the bucket is false: {said}")
            else:
                self._hash(number, bytes.fromhex(document["hash"]))
                self._note_cut(document)

    def add(self, rows: Iterable[Any]) -> None:
        """Those that Postgres has, in their order."""
        for row in rows:
            self._verdict.checkpoints += 1
            if row.reason == "cut":
                self._cut.add(row.number)
            if row.signed is not None:
                self._verdict.signed += 1
                self._add_signed(row)
            self._hash(row.number, row.hash)

    def hashes(self, anchors: Iterable[tuple[int, bytes]]) -> dict[int, bytes]:
        """The hash by number, of those that the chain can still be compared with."""
        for number, hash in anchors:
            if self._hashes.setdefault(number, hash) != hash:
                said = "the ledger has another hash for it than its checkpoint here"
                self._verdict.wrong(number, said)
        first = self._verdict.first
        return {number: hash for number, hash in self._hashes.items() if number >= first - 1}

    def start(self, cut: int) -> bytes:
        """The hash that the chain begins after."""
        if cut and cut not in self._cut:
            said = "the chain begins after it, and no checkpoint says that it was cut here"
            self._verdict.wrong(cut, said)
        elif cut and self._signed_cuts and cut not in self._signed_cuts:
            said = "the chain begins after it, and nothing signed says that it was cut here"
            self._verdict.wrong(cut, said)
        return self._hashes.get(cut, GENESIS)

    def _add_signed(self, row: Any) -> None:
        said = self._false(row)
        before, self._before = self._before, row.signed
        if said is not None:
            at = f"{row.at:%Y-%m-%d %H:%M}"
            self._verdict.wrong(row.number, f"its checkpoint of {at} is false: {said}")
            return
        document = row.signed["document"]
        self._note_cut(document)
        if before is None or not any(_is_chained(each) for each in (before, row.signed)):
            return
        if document.get("previous") != of_checkpoint(before).hex():
            said = (
                "the signed checkpoint before its own is missing: it was removed, or Postgres was"
                " restored from an older backup"
            )
            self._verdict.wrong(row.number, said)

    def _note_cut(self, document: dict[str, Any]) -> None:
        """Those of before said how far the chain was cut only where they cut it."""
        cut = document["number"] if document.get("reason") == "cut" else None
        if (said := document.get("cut", cut)) is not None:
            self._signed_cuts.add(said)

    def _false(self, row: Any) -> str | None:
        document = row.signed.get("document") or {}
        said = document.get("number"), document.get("hash"), document.get("reason")
        if said != (row.number, row.hash.hex(), row.reason):
            return "what was signed is something else"
        return None if self._check is None else self._check(row.signed)

    def _hash(self, number: int, hash: bytes) -> None:
        if self._hashes.setdefault(number, hash) != hash:
            self._verdict.wrong(number, "two checkpoints have different hashes for it")


def _is_chained(signed: dict[str, Any]) -> bool:
    """Not one that was made before they named the one before."""
    return "previous" in (signed.get("document") or {})
