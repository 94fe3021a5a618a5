"""Verifies the checkpoints of the audit, and finds out where its chain begins.

Whoever owns the tables can cut the beginning off and write a checkpoint that says so. If there is a
key, they cannot sign it: each signed checkpoint says how far the chain had been cut by then, and
names the one before it. The newest is in the bucket too, locked if the bucket can lock.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from inference_store.erasure.log.hash_chain import Link

from .hashes import GENESIS_HASH, hash_checkpoint
from .verdict import Verdict

# Returns what is wrong with what was signed; None: nothing.
Check = Callable[[dict[str, Any]], str | None]


class CheckpointHistory:
    """The checkpoints of Postgres and of the bucket; adds their failures to the verdict."""

    def __init__(self, verdict: Verdict, check: Check | None) -> None:
        self._verdict = verdict
        self._check = check
        self._hashes: dict[int, bytes] = {}
        self._cut: set[int] = set()
        self._signed_cuts: set[int] = set()
        self._previous: dict[str, Any] | None = None

    def add_copies(self, copies: Sequence[dict[str, Any]]) -> None:
        """Verify signed checkpoints that the bucket has."""
        for signed in copies:
            document = signed.get("document") or {}
            number = int(document.get("number", 0))
            if (fault := None if self._check is None else self._check(signed)) is not None:
                self._verdict.fail(number, f"its checkpoint in the bucket is false: {fault}")
            else:
                self._add_hash(number, bytes.fromhex(document["hash"]))
                self._note_cut(document)

    def add(self, rows: Iterable[Any]) -> None:
        """Verify the checkpoints that Postgres has, in order."""
        for row in rows:
            self._verdict.checkpoints += 1
            if row.reason == "cut":
                self._cut.add(row.number)
            if row.signed is not None:
                self._verdict.signed += 1
                self._add_signed(row)
            self._add_hash(row.number, row.hash)

    def collect_hashes(self, anchors: Iterable[Link]) -> dict[int, bytes]:
        """Return the hashes by number that the chain can still be compared with."""
        for link in anchors:
            if self._hashes.setdefault(link.number, link.hash) != link.hash:
                reason = "the ledger has another hash for it than its checkpoint here"
                self._verdict.fail(link.number, reason)
        first = self._verdict.first
        return {number: hash for number, hash in self._hashes.items() if number >= first - 1}

    def find_start(self, cut: int) -> Link:
        """Return the link that the chain begins after."""
        if cut and cut not in self._cut:
            reason = "the chain begins after it, and no checkpoint says that it was cut here"
            self._verdict.fail(cut, reason)
        elif cut and self._signed_cuts and cut not in self._signed_cuts:
            reason = "the chain begins after it, and nothing signed says that it was cut here"
            self._verdict.fail(cut, reason)
        return Link(cut, self._hashes.get(cut, GENESIS_HASH))

    def _add_signed(self, row: Any) -> None:
        fault = self._find_fault(row)
        previous, self._previous = self._previous, row.signed
        if fault is not None:
            at = f"{row.at:%Y-%m-%d %H:%M}"
            self._verdict.fail(row.number, f"its checkpoint of {at} is false: {fault}")
            return
        document = row.signed["document"]
        self._note_cut(document)
        if previous is None or not any(_is_chained(signed) for signed in (previous, row.signed)):
            return
        if document.get("previous") != hash_checkpoint(previous).hex():
            reason = (
                "the signed checkpoint before its own is missing: it was removed, or Postgres was"
                " restored from an older backup"
            )
            self._verdict.fail(row.number, reason)

    def _note_cut(self, document: dict[str, Any]) -> None:
        """Note how far the chain was cut. Older ones say it only if they are about a cut."""
        cut = document["number"] if document.get("reason") == "cut" else None
        if (signed_cut := document.get("cut", cut)) is not None:
            self._signed_cuts.add(signed_cut)

    def _find_fault(self, row: Any) -> str | None:
        document = row.signed.get("document") or {}
        signed = document.get("number"), document.get("hash"), document.get("reason")
        if signed != (row.number, row.hash.hex(), row.reason):
            return "what was signed is something else"
        return None if self._check is None else self._check(row.signed)

    def _add_hash(self, number: int, hash: bytes) -> None:
        if self._hashes.setdefault(number, hash) != hash:
            self._verdict.fail(number, "two checkpoints have different hashes for it")


def _is_chained(signed: dict[str, Any]) -> bool:
    """Return whether it names the one before it; older ones do not."""
    return "previous" in (signed.get("document") or {})
