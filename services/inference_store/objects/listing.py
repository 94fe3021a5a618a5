"""Finds which keys are still in a bucket, in any version, by listing."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import groupby
from os.path import commonprefix
from typing import Final

from minio import Minio

from .list_page import PAGE, ListPage, ObjectVersion, after, parse_page

# A few names are enough to see that nothing is there: a page of a thousand takes long.
_FEW: Final = 20
# If a page covers fewer keys than this share of its names, their folders are listed one by one: a
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
) -> list[ObjectVersion]:
    """Return every version and delete marker of `keys` (sorted) that the bucket still lists.

    Keys that were captured one after the other are neighbours: one list request from the first to
    the last covers a thousand of them. If many other keys lie between, each folder is listed by
    itself, and if a folder has many others, each key. `expected`: most are likely to exist.
    """
    sweep = partial(_sweep, client, bucket, versions=versions)
    side_by_side = map if executor is None else executor.map
    # the server makes a page while another is read: more than two do not help
    parts = _split_halves(keys) if expected else [keys]
    versions_found: list[ObjectVersion] = []
    remaining: list[str] = []
    for some, rest in side_by_side(partial(sweep, size=PAGE if expected else _FEW), parts):
        versions_found += some
        remaining += rest
    for some, rest in side_by_side(partial(sweep, size=PAGE), _group_by_folder(remaining)):
        versions_found += some
        for alone in side_by_side(partial(sweep, size=_FEW), ([key] for key in rest)):
            versions_found += alone[0]
    # the last key of a page is listed again if the keys after it are listed by themselves
    return list(dict.fromkeys(versions_found))


def _sweep(
    client: Minio, bucket: str, keys: Sequence[str], *, size: int, versions: bool
) -> tuple[list[ObjectVersion], Sequence[str]]:
    """Return the listed versions of the keys, from the first to the last; and the keys after the
    page where it gave up because too many others lie between. It does not give up on a single
    key."""
    versions_found: list[ObjectVersion] = []
    prefix, position = _begin(keys, versions=versions)
    while keys and position is not None:
        page = parse_page(client, bucket, prefix, position, size=size, versions=versions)
        versions_found += _select(keys, page)
        remaining = _list_remaining(keys, page, versions=versions)
        if page.next is None or not remaining:
            break
        passed = len(keys) - len(remaining)
        if size == PAGE and len(keys) > 1 and passed < _DENSE * len(page.entries):
            return versions_found, remaining
        keys, position, size = remaining, page.next, PAGE
    return versions_found, ()


def _begin(keys: Sequence[str], *, versions: bool) -> tuple[str, dict[str, str]]:
    """Return the common prefix, and the position before the first key."""
    if not keys:
        return "", {}
    # S3's prefixes consist of characters, not of path segments
    prefix = commonprefix([keys[0], keys[-1]])  # noqa: RUF071
    # "After" excludes its own name: the first key without its last character is before it. If that
    # is shorter than the prefix it is useless, and MinIO refuses it.
    before = keys[0][:-1] if len(prefix) < len(keys[0]) else None
    return prefix, after(before, versions=versions)


def _select(keys: Sequence[str], page: ListPage) -> Iterator[ObjectVersion]:
    names = frozenset(keys)
    return (entry for entry in page.entries if entry.key in names)


def _list_remaining(keys: Sequence[str], page: ListPage, *, versions: bool) -> Sequence[str]:
    """Return the keys that the next page may have; with versions also the last key of this one."""
    if page.last is None:
        return keys
    return keys[(bisect_left if versions else bisect_right)(keys, page.last) :]


def _split_halves(keys: Sequence[str]) -> list[Sequence[str]]:
    middle = len(keys) // 2 if len(keys) > PAGE else 0
    return [keys[:middle], keys[middle:]] if middle else [keys]


def _group_by_folder(keys: Sequence[str]) -> Iterator[list[str]]:
    """Yield neighbours that differ only in their last segment: a capture's objects."""
    return (list(group) for _, group in groupby(keys, lambda key: key.rpartition("/")[0]))


def first_after(client: Minio, bucket: str, prefix: str, after: str) -> str | None:
    """Return the first name under a prefix that is greater than `after`; None if there is none."""
    objects = client.list_objects(bucket, prefix=prefix, start_after=after, recursive=True)
    names = (entry.object_name for entry in objects)
    # a server without "start after" begins at the first
    return next((name for name in names if name is not None and name > after), None)
