"""The entries of the ledger in the bucket, by number: `ledger/0000000001` is the first."""

from inference_store.erasure.log.numbered_objects import DIGITS, MOST_BYTES, NumberedObjects
from inference_store.inference.errors import LedgerDiverged
from inference_store.objects import Blobs

from .entry import DamagedEntry, Entry, decode


class Entries:
    """Reads and writes entries. All of it blocks, and raises ObjectStoreUnavailable."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        self._objects = NumberedObjects(blobs, prefix)
        self.location = self._objects.location

    def get(self, number: int) -> Entry | None:
        """Return one entry; None if there is none. Raises LedgerDiverged if it is damaged."""
        if (data := self._objects.get(number)) is None:
            return None
        try:
            entry = decode(data)
            if entry.number != number:
                raise DamagedEntry(f"it says that it is number {entry.number}")
        except DamagedEntry as damaged:
            raise LedgerDiverged(
                f"The ledger's entry {self._objects.key(number)} is damaged: {damaged}. Bring it"
                " back from a copy of the bucket."
            ) from damaged
        return entry

    def read_after(self, after: int, limit: int) -> list[Entry]:
        """Return the entries after a number, at most `limit`. Raises LedgerDiverged as `get`."""
        entries: list[Entry] = []
        number = self.find_after(after)
        while number is not None and len(entries) < limit:
            if (entry := self.get(number)) is None:
                break
            entries.append(entry)
            number += 1
        return entries

    def put(self, entry: Entry) -> bool:
        """Write an entry; return False, and write nothing, if there is one of its number."""
        data = entry.encode()
        if len(data) > MOST_BYTES:
            raise ValueError(f"an entry has at most {MOST_BYTES} bytes, not {len(data)}")
        return self._objects.put_new(entry.number, data)

    def redact(self, entry: Entry) -> str | None:
        """Overwrite an entry without its content; return why an older version stays, if so."""
        return self._objects.replace(entry.number, entry.redact().encode())

    def find_after(self, number: int) -> int | None:
        """Return the number of the first entry after this one; None if this is the last."""
        name = self._objects.find_name_after(number)
        if name is None:
            return None
        if not (len(name) == DIGITS and name.isascii() and name.isdigit()):
            raise LedgerDiverged(
                f"{self.location} holds {self._objects.prefix + name!r}, which is no entry of a"
                " ledger: move it elsewhere, or choose another INFERENCE_STORE_LEDGER_PREFIX."
            )
        return int(name)

    def find_last(self) -> int:
        """Return the number of the last entry; 0 if there is none.

        It is found by bisection, because numbers have no gaps.
        """
        low, high = 0, 1
        while self.find_after(high - 1) is not None:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.find_after(middle - 1) is not None else (low, middle)
        return low
