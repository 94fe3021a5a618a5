"""One page of a bucket's list: only names, versions and delete markers.

minio-py creates fifteen attributes for each entry, which takes ten times as long as the rest and
the server, and it always requests a thousand entries.
"""

from typing import Final, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from minio import Minio

PAGE: Final = 1000
_MARKER: Final = "DeleteMarker"
_ENTRIES: Final = {"Contents", "Version", _MARKER}


class ObjectVersion(NamedTuple):
    """One version, or delete marker, of an object; `id` is None if the bucket keeps none."""

    key: str
    id: str | None = None
    latest: bool = True
    marker: bool = False
    size: int = 0


class ListPage(NamedTuple):
    """The answer to a list request. `next`: parameters of the next one; None if there is none."""

    entries: list[ObjectVersion]
    next: dict[str, str] | None

    @property
    def last(self) -> str | None:
        """The last name; if more pages follow, it may have more versions than are here."""
        return max((entry.key for entry in self.entries), default=None)


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
