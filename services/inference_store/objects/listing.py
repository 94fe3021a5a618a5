"""Which of some keys are still in a bucket, in any version, by listing."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import groupby
from os.path import commonprefix
from typing import Final

from minio import Minio

from .listed import PAGE, Page, Version, after, listed

# To see that nothing is there few names are enough: a page of a thousand takes its time.
_FEW: Final = 20
# If a page passes fewer keys than this share of its names, their folders are listed one by one: a
# page of a thousand takes MinIO as long as 150 folders, which hold three keys each.
_DENSE: Final = 0.4


def survivors(
    client: Minio,
    bucket: str,
    keys: Sequence[str],
    versions: bool,
    *,
    executor: Executor | None = None,
    expected: bool = False,
) -> list[Version]:
    """Every version and delete marker of `keys` (sorted) that the bucket still lists.

    Keys that were captured one after the other are neighbours: one list request from the
    first to the last covers a thousand of them. Where much else lies between, each folder is
    listed by itself, and where that is full of others each key. `expected`: most are likely to
    be there.
    """
    swept = partial(_swept, client, bucket, versions=versions)
    side_by_side = map if executor is None else executor.map
    # the server makes a page while another is read: more than two gain nothing
    parts = _halves(keys) if expected else [keys]
    found: list[Version] = []
    left: list[str] = []
    for some, rest in side_by_side(partial(swept, size=PAGE if expected else _FEW), parts):
        found += some
        left += rest
    for some, rest in side_by_side(partial(swept, size=PAGE), _folders(left)):
        found += some
        for alone in side_by_side(partial(swept, size=_FEW), ([key] for key in rest)):
            found += alone[0]
    # what a page ended with is listed again where the keys behind it are listed by themselves
    return list(dict.fromkeys(found))


def _swept(
    client: Minio, bucket: str, keys: Sequence[str], *, size: int, versions: bool
) -> tuple[list[Version], Sequence[str]]:
    """What is listed of the keys, from the first to the last; and the keys behind the page after
    which it gave up, for too much else lies between them. A key alone is not given up."""
    found: list[Version] = []
    prefix, place = _begin(keys, versions=versions)
    while keys and place is not None:
        page = listed(client, bucket, prefix, place, size=size, versions=versions)
        found += _among(keys, page)
        left = _behind(keys, page, versions=versions)
        if page.next is None or not left:
            break
        passed = len(keys) - len(left)
        if size == PAGE and len(keys) > 1 and passed < _DENSE * len(page.entries):
            return found, left
        keys, place, size = left, page.next, PAGE
    return found, ()


def _begin(keys: Sequence[str], *, versions: bool) -> tuple[str, dict[str, str]]:
    """The prefix of all, and the place before the first."""
    if not keys:
        return "", {}
    # S3's prefixes are of characters, not of path segments
    prefix = commonprefix([keys[0], keys[-1]])  # noqa: RUF071
    # "Behind" leaves its own name out: the first key without its last character is before it.
    # Where that is shorter than the prefix it would add nothing, and MinIO refuses it.
    before = keys[0][:-1] if len(prefix) < len(keys[0]) else None
    return prefix, after(before, versions=versions)


def _among(keys: Sequence[str], page: Page) -> Iterator[Version]:
    wanted = frozenset(keys)
    return (entry for entry in page.entries if entry.key in wanted)


def _behind(keys: Sequence[str], page: Page, *, versions: bool) -> Sequence[str]:
    """Those that the next page may have; of versions also the key that this one ended with."""
    if page.last is None:
        return keys
    return keys[(bisect_left if versions else bisect_right)(keys, page.last) :]


def _halves(keys: Sequence[str]) -> list[Sequence[str]]:
    middle = len(keys) // 2 if len(keys) > PAGE else 0
    return [keys[:middle], keys[middle:]] if middle else [keys]


def _folders(keys: Sequence[str]) -> Iterator[list[str]]:
    """Neighbours that differ in their last segment only: a capture's objects."""
    return (list(group) for _, group in groupby(keys, lambda key: key.rpartition("/")[0]))


def first_after(client: Minio, bucket: str, prefix: str, after: str) -> str | None:
    """The first name under a prefix that is greater than `after`."""
    listed = client.list_objects(bucket, prefix=prefix, start_after=after, recursive=True)
    names = (found.object_name for found in listed)
    # a server that does not know "start after" begins at the first
    return next((name for name in names if name is not None and name > after), None)
