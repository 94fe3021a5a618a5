"""Finds which keys are still in a bucket, in any version, by listing."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from os.path import commonprefix
from typing import Final, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from minio import Minio
from minio.datatypes import Object
from minio.error import MinioException, S3Error

from inference_store.inference.events import StorageKey
from inference_store.inference.layout import Member, segment_of_key
from inference_store.inference.tar import ERASED, iterate_entries
from inference_store.platform.settings import BlobSettings

from .clients import knows_no_versions, minio_client, translate_errors

IMPOSSIBLE: Final = frozenset({"XMinioInvalidObjectName", "XMinioInvalidResourceName"})
"""Codes of a server that holds no object of such a name: an event may name anything."""
# A few names are enough to see that nothing is there: a page of a thousand takes long.
_FEW: Final = 20
# If a page covers fewer keys than this share of its names, their folders are listed one by one: a
# page of a thousand takes MinIO as long as 150 folders, which hold three keys each.
_DENSE: Final = 0.4


class ObjectVersion(NamedTuple):
    """One version, or delete marker, of an object; `id` is None if the bucket keeps none."""

    key: str
    id: str | None = None
    latest: bool = True
    marker: bool = False
    size: int = 0


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
    middle = len(keys) // 2 if expected and len(keys) > PAGE else 0
    parts = [keys[:middle], keys[middle:]] if middle else [keys]
    versions_found: list[ObjectVersion] = []
    remaining: list[str] = []
    for some, rest in side_by_side(partial(sweep, size=PAGE if expected else _FEW), parts):
        versions_found += some
        remaining += rest
    # neighbours that differ only in their last segment: a capture's objects
    by_folder = groupby(remaining, lambda key: key.rpartition("/")[0])
    folders = [list(group) for _, group in by_folder]
    for some, rest in side_by_side(partial(sweep, size=PAGE), folders):
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
        try:
            page = parse_page(client, bucket, prefix, position, size=size, versions=versions)
        except S3Error as error:
            if error.code not in IMPOSSIBLE:
                raise
            return versions_found, keys if len(keys) > 1 else ()
        names = frozenset(keys)
        versions_found += [entry for entry in page.entries if entry.key in names]
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


class ListPage(NamedTuple):
    """The answer to a list request. `next`: parameters of the next one; None if there is none."""

    entries: list[ObjectVersion]
    next: dict[str, str] | None

    @property
    def last(self) -> str | None:
        """The last name; if more pages follow, it may have more versions than are here."""
        return max((entry.key for entry in self.entries), default=None)


def _list_remaining(keys: Sequence[str], page: ListPage, *, versions: bool) -> Sequence[str]:
    """Return the keys that the next page may have; with versions also the last key of this one."""
    if page.last is None:
        return keys
    return keys[(bisect_left if versions else bisect_right)(keys, page.last) :]


# One page of a bucket's list: only names, versions and delete markers.
#
# minio-py creates fifteen attributes for each entry, which takes ten times as long as the rest and
# the server, and it always requests a thousand entries.

PAGE: Final = 1000
_MARKER: Final = "DeleteMarker"
_ENTRIES: Final = {"Contents", "Version", _MARKER}


def after(name: str | None, *, versions: bool) -> dict[str, str]:
    """Return the parameters of a first page: of the names after this one, or of all."""
    return {"key-marker" if versions else "start-after": name} if name else {}


def parse_page(
    client: Minio, bucket: str, prefix: str, position: dict[str, str], *, size: int, versions: bool
) -> ListPage:
    """Return at most `size` entries from a position on."""
    query = {"versions": ""} if versions else {"list-type": "2"}
    query |= {"delimiter": "", "encoding-type": "url", "max-keys": str(size), "prefix": prefix}
    answer = client._execute("GET", bucket, query_params={**query, **position})
    root = ElementTree.fromstring(answer.data)
    ours = root.tag[: root.tag.find("}") + 1]
    encoded = root.findtext(f"{ours}EncodingType") == "url"
    entries = [_read_entry(e, ours, encoded) for e in root if e.tag[len(ours) :] in _ENTRIES]
    return ListPage(entries, _find_next(root, ours, encoded, entries, versions=versions))


def _read_entry(element: Element, ours: str, encoded: bool) -> ObjectVersion:
    name = element.findtext(f"{ours}Key") or ""
    latest = element.findtext(f"{ours}IsLatest")
    return ObjectVersion(
        unquote_plus(name) if encoded else name,
        element.findtext(f"{ours}VersionId"),
        latest is None or latest.lower() == "true",
        element.tag == ours + _MARKER,
        int(element.findtext(f"{ours}Size") or 0),
    )


def _find_next(
    root: Element, ours: str, encoded: bool, entries: list[ObjectVersion], *, versions: bool
) -> dict[str, str] | None:
    def find_text(name: str) -> str | None:
        return root.findtext(ours + name) or None

    if (find_text("IsTruncated") or "").lower() != "true":
        return None
    if token := find_text("NextContinuationToken"):
        return {"continuation-token": token}
    marker = find_text("NextKeyMarker")
    if marker is None:
        return after(entries[-1].key if entries else None, versions=versions)
    position = {"key-marker": unquote_plus(marker) if encoded else marker}
    version = find_text("NextVersionIdMarker")
    return position if version is None else position | {"version-id-marker": version}


class Found(NamedTuple):
    """A listed object."""

    place: StorageKey
    size: int
    modified_at: datetime


def page(client: Minio, bucket: str, prefix: str, after: str, limit: int) -> list[Found]:
    """Return the first `limit` objects under a prefix whose keys come after `after` (UTF-8's
    order)."""
    # MinIO refuses a start that is not under the prefix.
    start = after if after.startswith(prefix) and after != prefix else None
    listed = client.list_objects(bucket, prefix=prefix, start_after=start, recursive=True)
    objects = (
        Found(
            StorageKey(bucket, entry.object_name),
            entry.size or 0,
            entry.last_modified or datetime.now(UTC),
        )
        for entry in listed
        # a server without "start after" begins at the first
        if entry.object_name is not None and entry.object_name > after and not entry.is_dir
    )
    return list(islice(objects, limit))


class Held(NamedTuple):
    """An object that exists, in some version; `modified`: when it was written."""

    key: StorageKey
    modified: datetime | None


def inventory(settings: BlobSettings) -> Iterator[Held]:
    """Yield every object of every allowed bucket, each version once, without delete markers; and
    what a segment holds that is not erased.

    Blocks; raises ObjectStoreUnavailable. Without the right to list versions: current ones only.
    """
    client = minio_client(settings, settings.s3_endpoint)
    for bucket in sorted(settings.buckets):
        with translate_errors():
            for entry in _list_entries(client, bucket):
                if entry.object_name is not None and not entry.is_delete_marker:
                    yield Held(StorageKey(bucket, entry.object_name), entry.last_modified)
                    if segment_of_key(entry.object_name) is not None:
                        yield from _iterate_members(client, bucket, entry)


def _iterate_members(client: Minio, bucket: str, entry: Object) -> Iterator[Held]:
    name = str(entry.object_name)
    answer = client.get_object(bucket, name, version_id=entry.version_id)
    try:
        with suppress(ValueError):  # from there on it is no tar of ours
            for found, _ in iterate_entries(answer):
                if found.name != ERASED:
                    member = Member(name, found.offset, found.size)
                    yield Held(StorageKey(bucket, str(member)), entry.last_modified)
    finally:
        answer.close()
        answer.release_conn()


def _list_entries(client: Minio, bucket: str) -> Iterator[Object]:
    listed = client.list_objects(bucket, recursive=True, include_version=True)
    try:
        first = next(listed, None)
    except MinioException as exc:
        refused = isinstance(exc, S3Error) and exc.code == "AccessDenied"
        if not (refused or knows_no_versions(exc)):
            raise
        yield from client.list_objects(bucket, recursive=True)
        return
    if first is not None:
        yield first
    yield from listed


# Control characters, and characters that XML cannot contain: obstore refuses the first, a bulk
# delete both.
_UNWRITABLE = re.compile("[\x00-\x1f\x7f\ufffe\uffff]")


def is_plain(key: str) -> bool:
    """Return whether every client and a bulk delete address exactly this key.

    obstore silently strips a slash at either end, and then reads another object.
    """
    if _UNWRITABLE.search(key):
        return False
    return not any(segment in {"", ".", ".."} for segment in key.split("/"))


def is_addressable(key: str) -> bool:
    """Return whether any client can request the key: `.` and `..` are resolved on the way."""
    return not any(segment in {".", ".."} for segment in key.split("/"))
