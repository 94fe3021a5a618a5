"""One page of a bucket's list: names, versions and delete markers, and nothing else of them.

minio-py makes fifteen attributes of each entry, which takes ten times as long as the rest of it
and as the server, and it always asks for a thousand of them.
"""

from typing import Final, NamedTuple
from urllib.parse import unquote_plus
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from minio import Minio

PAGE: Final = 1000
_MARKER: Final = "DeleteMarker"
_ENTRIES: Final = {"Contents", "Version", _MARKER}


class Version(NamedTuple):
    """One version, or delete marker, of an object; `id` is None where the bucket keeps none."""

    key: str
    id: str | None = None
    latest: bool = True
    marker: bool = False
    size: int = 0


class Page(NamedTuple):
    """What a list request answered. `next`: parameters of the next one; None: that was all."""

    entries: list[Version]
    next: dict[str, str] | None

    @property
    def last(self) -> str | None:
        """The last name; where more follow, it may have more versions than are here."""
        return max((entry.key for entry in self.entries), default=None)


def after(name: str | None, *, versions: bool) -> dict[str, str]:
    """Parameters of a first page: of what comes behind a name, or of everything."""
    return {"key-marker" if versions else "start-after": name} if name else {}


def listed(
    client: Minio, bucket: str, prefix: str, place: dict[str, str], *, size: int, versions: bool
) -> Page:
    """At most `size` entries from a place on."""
    query = {"versions": ""} if versions else {"list-type": "2"}
    query |= {"delimiter": "", "encoding-type": "url", "max-keys": str(size), "prefix": prefix}
    answer = client._execute("GET", bucket, query_params={**query, **place})
    root = ElementTree.fromstring(answer.data)
    ours = root.tag[: root.tag.find("}") + 1]
    encoded = root.findtext(f"{ours}EncodingType") == "url"
    entries = [_entry(e, ours, encoded) for e in root if e.tag[len(ours) :] in _ENTRIES]
    return Page(entries, _next(root, ours, encoded, entries, versions=versions))


def _entry(element: Element, ours: str, encoded: bool) -> Version:
    name = element.findtext(f"{ours}Key") or ""
    latest = element.findtext(f"{ours}IsLatest")
    return Version(
        unquote_plus(name) if encoded else name,
        element.findtext(f"{ours}VersionId"),
        latest is None or latest.lower() == "true",
        element.tag == ours + _MARKER,
        int(element.findtext(f"{ours}Size") or 0),
    )


def _next(
    root: Element, ours: str, encoded: bool, entries: list[Version], *, versions: bool
) -> dict[str, str] | None:
    def said(name: str) -> str | None:
        return root.findtext(ours + name) or None

    if (said("IsTruncated") or "").lower() != "true":
        return None
    if token := said("NextContinuationToken"):
        return {"continuation-token": token}
    marker = said("NextKeyMarker")
    if marker is None:
        return after(entries[-1].key if entries else None, versions=versions)
    place = {"key-marker": unquote_plus(marker) if encoded else marker}
    version = said("NextVersionIdMarker")
    return place if version is None else place | {"version-id-marker": version}
