"""The location of a blob: an allowed bucket, and a key in it."""

from collections.abc import Set
from dataclasses import dataclass

SCHEME = "s3://"
MAX_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class StorageKey:
    """A blob's location; its text is `s3://bucket/key`."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets that may be read and deleted from."""

    default: str
    allowed: Set[str]
    # prefixes of our own keys in the default bucket: no event may name such a key
    closed: tuple[str, ...] = ()

    def resolve(self, text: str) -> StorageKey:
        """Return the location that an event's storage key names.

        Raises ValueError, with the remedy, for a bucket off the allow-list or a key that S3 cannot
        hold, or that is our own: an event must not make us read a foreign bucket, nor show or
        delete our own objects.
        """
        if text.startswith(SCHEME):
            bucket, _, key = text[len(SCHEME) :].partition("/")
        else:
            bucket, key = self.default, text
        if bucket != self.default and bucket not in self.allowed:
            buckets = ", ".join(sorted(self.allowed | {self.default}))
            raise ValueError(
                f"bucket {bucket!r} is not allowed; allowed are {buckets}"
                " (INFERENCE_STORE_S3_ALLOWED_BUCKETS)"
            )
        if self.is_closed(StorageKey(bucket, key)):
            raise ValueError(
                f"{key!r}: keys that begin with {' or '.join(self.closed)} are the store's own"
            )
        return StorageKey(bucket, _check_key(key))

    def is_closed(self, key: StorageKey) -> bool:
        """Return whether the key is one of our own, which no blob of an inference has."""
        return key.bucket == self.default and key.key.lstrip("/").startswith(self.closed)


def _check_key(key: str) -> str:
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise ValueError("the storage key holds a lone surrogate") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise ValueError(f"a storage key has 1 to {MAX_KEY_BYTES} bytes, not {size}")
    if "\0" in key:
        raise ValueError("the storage key holds NUL")
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise ValueError(
            "`.` and `..` are resolved away on the road: no client can ask for such a key"
        )
    return key


def parse_stored(text: str) -> StorageKey:
    """Return the StorageKey of the text that the index stores (`s3://bucket/key`)."""
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    return StorageKey(bucket, key)
