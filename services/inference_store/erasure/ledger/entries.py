"""The entries in the bucket, by number: `ledger/0000000001` is the first. All of it blocks."""

from inference_store.inference.errors import BlobMissing, LedgerApart
from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs

from .entry import CONTENT_TYPE, Damaged, Entry, decode

MOST_BYTES = 64 * 1024 * 1024
_DIGITS = 10


class Entries:
    """Reads and puts entries. Raises BlobsAway when S3 cannot be asked."""

    def __init__(self, blobs: Blobs, prefix: str) -> None:
        self._blobs = blobs
        self._bucket = blobs.buckets.default
        self._prefix = prefix

    @property
    def place(self) -> str:
        """Where they lie, for people."""
        return f"s3://{self._bucket}/{self._prefix}"

    def get(self, number: int) -> Entry | None:
        """One entry; None where there is none. Raises LedgerApart for one that is damaged."""
        key = self._key(number)
        try:
            entry = decode(self._blobs.get(key, limit=2 * MOST_BYTES))
            if entry.number != number:
                raise Damaged(f"it says that it is number {entry.number}")
        except BlobMissing:
            return None
        except Damaged as damaged:
            raise LedgerApart(
                f"The ledger's entry {key} is damaged: {damaged}. Bring it back from a copy of the"
                " bucket."
            ) from damaged
        return entry

    def listed(self, after: int, limit: int) -> list[Entry]:
        """The entries that follow a number, at most so many. Raises LedgerApart as `get`."""
        found: list[Entry] = []
        number = self.beyond(after)
        while number is not None and len(found) < limit and (entry := self.get(number)) is not None:
            found.append(entry)
            number += 1
        return found

    def put(self, entry: Entry) -> bool:
        """Put an entry where none is; False: one is there already.

        Where the store does not know conditional writes, the look before is all there is.
        """
        data, key = entry.encoded(), self._key(entry.number)
        if len(data) > MOST_BYTES:
            raise ValueError(f"an entry has at most {MOST_BYTES} bytes, not {len(data)}")
        return not self._is_there(key) and self._blobs.put_new(key, data, content_type=CONTENT_TYPE)

    def forget(self, entry: Entry) -> str | None:
        """Put an entry without what it said, and delete what it was before; what stays, if any."""
        key = self._key(entry.number)
        faults = self._blobs.replace(key, entry.forgotten().encoded(), content_type=CONTENT_TYPE)
        return f"{key}: {faults[0].code} {faults[0].message}" if faults else None

    def beyond(self, number: int) -> int | None:
        """The number of the first entry after this one; None where it is the last."""
        name = self._blobs.first_after(self._bucket, self._prefix, self._key(number).key)
        if name is None:
            return None
        text = name.removeprefix(self._prefix)
        if not (len(text) == _DIGITS and text.isascii() and text.isdigit()):
            raise LedgerApart(
                f"{self.place} holds {name!r}, which is no entry of a ledger: move it elsewhere, or"
                " choose another INFERENCE_STORE_LEDGER_PREFIX."
            )
        return int(text)

    def last(self) -> int:
        """The number of the last entry; 0 where there is none. Asks a few times: numbers have no
        holes."""
        low, high = 0, 1
        while self.beyond(high - 1) is not None:
            low, high = high, 2 * high
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if self.beyond(middle - 1) is not None else (low, middle)
        return low

    def _is_there(self, key: StorageKey) -> bool:
        try:
            self._blobs.head(key)
        except BlobMissing:
            return False
        return True

    def _key(self, number: int) -> StorageKey:
        return StorageKey(self._bucket, f"{self._prefix}{number:0{_DIGITS}}")
