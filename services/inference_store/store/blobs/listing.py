"""Which of some keys are still in a bucket, in any version, by listing."""

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import NamedTuple

from minio import Minio

PAGE = 1000


class Version(NamedTuple):
    """One version, or delete marker, of an object; `id` is None where the bucket keeps none."""

    key: str
    id: str | None = None
    latest: bool = True
    marker: bool = False


def first_after(client: Minio, bucket: str, prefix: str, after: str) -> str | None:
    """The first name under a prefix that is greater than `after`."""
    listed = client.list_objects(bucket, prefix=prefix, start_after=after, recursive=True)
    names = (found.object_name for found in listed)
    # a server that does not know "start after" begins at the first
    return next((name for name in names if name is not None and name > after), None)


class _TooManyBetween(Exception):
    """More other objects than keys lie between the first key and the last."""


def survivors(client: Minio, bucket: str, keys: Sequence[str], versions: bool) -> list[Version]:
    """Every version and delete marker of `keys` (sorted) that the bucket still lists.

    Keys that were captured one after the other are neighbours: one list request from the
    first to the last covers a thousand of them. Where much else lies between, the halves are
    listed by themselves, down to one key.
    """
    if not keys:
        return []
    try:
        return list(_between(client, bucket, keys, versions))
    except _TooManyBetween:
        half = len(keys) // 2
        first = survivors(client, bucket, keys[:half], versions)
        return first + survivors(client, bucket, keys[half:], versions)


def _between(client: Minio, bucket: str, keys: Sequence[str], versions: bool) -> Iterator[Version]:
    wanted, last = frozenset(keys), keys[-1]
    others = beyond = 0
    for found in _listed(client, bucket, keys, versions):
        name = found.key
        if name in wanted:
            yield found
        elif name > last:
            # A page has its versions first and its delete markers after them: only past a
            # whole page of later names can no marker of ours follow.
            beyond += 1
            if not versions or beyond > PAGE:
                return
        else:
            others += 1
            if len(keys) > 1 and others > PAGE + len(keys):
                raise _TooManyBetween


def _listed(client: Minio, bucket: str, keys: Sequence[str], versions: bool) -> Iterator[Version]:
    # S3's prefixes are of characters, not of path segments
    prefix = commonprefix([keys[0], keys[-1]])  # noqa: RUF071
    # "Start after" leaves its own name out: the first key without its last character is before
    # it. Where that is shorter than the prefix it would add nothing, and MinIO refuses it.
    start_after = keys[0][:-1] if len(prefix) < len(keys[0]) else None
    listed = client.list_objects(
        bucket,
        prefix=prefix,
        start_after=start_after or None,
        recursive=True,
        include_version=versions,
    )
    for found in listed:
        if found.object_name is not None:
            latest = found.is_latest is None or str(found.is_latest).lower() == "true"
            yield Version(found.object_name, found.version_id, latest, bool(found.is_delete_marker))
