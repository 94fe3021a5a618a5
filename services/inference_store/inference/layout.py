"""The object keys of our own producers, and of the store itself.

Packed: `<prefix>/<model>/<yyyy>/<mm>/<dd>/<hh>/<segment id>.tar#<offset>+<length>`, a range of
bytes of a segment (inference/tar.py). The ids of its captures repeat bits of the segment's id,
so that such a key names one inference's segment. Loose:
`<prefix>/<model>/<yyyy>/<mm>/<dd>/<hh>/<capture_id>/{data,metadata,response}`: the capture id
is new for every capture, so such a key belongs to one inference only. A client's ids are
never in a key, because they repeat and may contain `/`.

Objects that the store adds are named by the inference's uid: `sidecars/…` and `metadata/…`. Ground
truth is packed: `ground-truth/<model>/…`, with an entry for each set of an inference (truth/).
Certificates are under `certificates/…`, and exports under `exports/…`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote, unquote
from uuid import UUID

from inference_store.inference.json_text import storable

Kind = Literal["data", "metadata", "response"]
CERTIFICATES: Final = "certificates/"
EXPORTS: Final = "exports/"
# The prefixes of objects that the store itself adds, by model.
SIDECARS = "sidecars"
EDITED = "metadata"
TRUTH: Final = "ground-truth"
"""The prefix of segments with what is true of inferences, by model."""
# Proof of what was erased, copies, and truth: no event may name such a key, to have it shown or
# deleted.
CLOSED = (CERTIFICATES, EXPORTS, f"{TRUTH}/")
# Producers may name hours of local clocks, UTC-12 to UTC+14; one more for a wrong clock.
_APART = timedelta(hours=15)
_HOUR = timedelta(hours=1)
_HOURS = "%Y/%m/%d/%H"
_KINDS = frozenset({"data", "metadata", "response"})
# The folder of a capture: the model's segment, the hour, the capture.
_FOLDER = re.compile(
    r"(?:(?:.*/)?([^/]*)/)?(\d{4}/\d\d/\d\d/\d\d)/"
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.ASCII | re.DOTALL,
)
# Servers that keep objects as files allow 255 bytes between two slashes.
_LONGEST_SEGMENT = 200


def key_of(prefix: str, model_id: str, at: datetime, capture_id: UUID, kind: Kind) -> str:
    """Return the key of one blob of a capture."""
    key = f"{segment_of(model_id)}/{hour_folder(at)}/{capture_id}/{kind}"
    return f"{prefix}/{key}" if prefix else key


def hour_folder(at: datetime) -> str:
    """Return the part of a key that names an hour; in the order of time, as texts too."""
    return f"{at.astimezone(UTC):{_HOURS}}"


def belongs_to(
    key: str, model_id: str | None, capture_id: UUID | None, received_at: datetime
) -> bool:
    """Return whether a key of this layout names this capture of this model, received then: nothing
    else points to it. By the capture alone an event of another model could delete it.
    """
    if model_id is None or capture_id is None:
        return False
    if (member := member_of(key)) is not None:
        names = segment_of_key(member.segment)
        is_inside = names is not None and is_packed_in(capture_id, names[2])
        return is_inside and member.segment.split("/")[-6:-5] == [segment_of(model_id)]
    if (names := capture_of(key)) is None:
        return False
    model, hour, capture = names
    # a capture is searched by its hour: a key with another day needs a reference
    is_near = -_APART <= received_at - hour < _HOUR + _APART
    return capture == capture_id and model == model_id and is_near


def around(hours: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """Return the disjoint spans of time in which captures with keys of these hours were
    received."""
    return join_spans((hour - _APART, hour + _HOUR + _APART) for hour in set(hours))


def join_spans(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return spans of time as disjoint ones, in order."""
    joined: list[tuple[datetime, datetime]] = []
    for lo, hi in sorted(spans):
        if joined and lo <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return joined


def capture_of(key: str) -> tuple[str, datetime, UUID] | None:
    """Return the model, the hour and the capture that a key of this layout names; else None."""
    folder, _, kind = key.rpartition("/")
    return _capture_of(folder) if kind in _KINDS else None


@lru_cache(maxsize=64)
def _capture_of(folder: str) -> tuple[str, datetime, UUID] | None:
    """Parse a capture's folder; cached for the other keys of the capture, which come next."""
    match = _FOLDER.fullmatch(folder)
    if match is None:
        return None
    model, text, capture = match.groups("")
    hour = _hour_of(text)
    return None if hour is None else (unquote(model), hour, UUID(capture))


@lru_cache(maxsize=1024)
def _hour_of(text: str) -> datetime | None:
    """Return the hour that a key names; cached, because parsing takes longer than the rest of the
    key."""
    try:
        at = datetime.strptime(text, _HOURS).replace(tzinfo=UTC)
    except ValueError:
        return None
    # no inference has a year outside these
    return at if 2000 <= at.year < 9999 else None


# Members of segments.

_MEMBER = re.compile(r"(.*/.*/[0-9a-f-]{36}\.tar)#(0|[1-9]\d{0,14})\+(0|[1-9]\d{0,14})", re.ASCII)
_TAR: Final = ".tar"
MOST_MEMBERS: Final = 1 << 14
"""Captures of a segment: their ordinals have 14 bits."""
# The bits of a UUIDv7 that a segment and its captures share: 12 before the variant, the last 48.
_SHARED: Final = (0xFFF << 64) | ((1 << 48) - 1)


@dataclass(frozen=True, slots=True)
class Member:
    """A blob inside a segment: the segment's key, and the range of bytes."""

    segment: str
    offset: int
    length: int

    def __str__(self) -> str:
        return f"{self.segment}#{self.offset}+{self.length}"


@lru_cache(maxsize=64)
def member_of(key: str) -> Member | None:
    """Return the member that a key names; None: it is the key of an object."""
    match = _MEMBER.fullmatch(key)
    if match is None or segment_of_key(match[1]) is None:
        return None
    return Member(match[1], int(match[2]), int(match[3]))


def segment_key(prefix: str, model_id: str, at: datetime, segment: UUID) -> str:
    """Return the key of a segment."""
    key = f"{segment_of(model_id)}/{hour_folder(at)}/{segment}{_TAR}"
    return f"{prefix}/{key}" if prefix else key


def segment_of_key(key: str) -> tuple[str, datetime, UUID] | None:
    """Return the model, the hour and the id that the key of a segment names; else None."""
    return _capture_of(key.removesuffix(_TAR)) if key.endswith(_TAR) else None


def packed_capture_id(segment: UUID, ordinal: int, milliseconds: int) -> UUID:
    """Return the id of a segment's capture: a UUIDv7 with its ordinal and bits of the segment's."""
    fixed = (milliseconds & (1 << 48) - 1) << 80 | 7 << 76 | 2 << 62
    return UUID(int=fixed | segment.int & _SHARED | ordinal << 48)


def is_packed_in(capture_id: UUID, segment: UUID) -> bool:
    """Return whether a capture's id was made for a segment."""
    return capture_id.int & _SHARED == segment.int & _SHARED


def ordinal_of(capture_id: UUID) -> int:
    """Return the ordinal of a packed capture in its segment, from 0."""
    return capture_id.int >> 48 & MOST_MEMBERS - 1


def sidecar_key(model_id: str, at: datetime, uid: UUID) -> str:
    """Return the key of an inference's sidecar."""
    return f"{SIDECARS}/{segment_of(model_id)}/{hour_folder(at)}/{uid}"


def edited_key(model_id: str, uid: UUID) -> str:
    """Return the key of the metadata blob that an edit makes."""
    return f"{EDITED}/{segment_of(model_id)}/{uid}"


def is_edited(storage_key: str) -> bool:
    """Return whether a storage key, with its bucket, is one that an edit makes."""
    *_, folder, _, uid = ["", "", *storage_key.rsplit("/", 2)]
    try:
        return folder.endswith(f"/{EDITED}") and str(UUID(uid)) == uid
    except ValueError:
        return False


def is_truth(storage_key: str) -> bool:
    """Return whether a storage key, with its bucket, is that of an inference's truth: only we name
    it, and one inference alone has it."""
    return storage_key.split("/", 4)[3:4] == [TRUTH]


def segment_of(model_id: str) -> str:
    """Return a model as one segment of a key: escaped, and hashed if that is too long."""
    escaped = quote(model_id, safe="")
    if escaped in {".", ".."}:  # no client can address them
        return escaped.replace(".", "%2E")
    if len(escaped) <= _LONGEST_SEGMENT:
        return escaped
    digest = blake2b(model_id.encode(), digest_size=16).hexdigest()
    return f"{escaped[: _LONGEST_SEGMENT - 33]}~{digest}"


# What may be the id of a model, a project or an inference.

MOST_CHARACTERS: Final = 256
_RELATIVE: Final = frozenset({".", ".."})


def is_id(text: str) -> bool:
    """Return whether a text may be an id.

    Browsers and proxies resolve `.` and `..` in a path, escaped or not: a request about the model
    `..` would be about all models.
    """
    return 0 < len(text) <= MOST_CHARACTERS and storable(text) and text not in _RELATIVE


def check_id(text: str) -> str:
    """Return an id as it is. Raises ValueError, which says what an id may be."""
    if not is_id(text):
        raise ValueError(
            f"an id has 1 to {MOST_CHARACTERS} characters, without NUL or lone surrogates, and is"
            " not `.` or `..`"
        )
    return text


# The content type of an image, by its first bytes.

# The MIME Sniffing standard's images, and those of newer containers.
_IMAGES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBPVP", re.DOTALL), "image/webp"),
    (re.compile(rb"BM....\0\0\0\0", re.DOTALL), "image/bmp"),
    (re.compile(rb"II\*\0|MM\0\*"), "image/tiff"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "image/avif"),
    (re.compile(rb"....ftyp(hei[cx]|hev[cx]|mif1)", re.DOTALL), "image/heic"),
    (re.compile(rb"\0\0\0\x0cjP  \r\n\x87\n"), "image/jp2"),
    (re.compile(rb"P[1-6][ \t\r\n]"), "image/x-portable-anymap"),
)


def find_image_type(data: bytes) -> str | None:
    """Return the content type of an image; None: the bytes are no image that is known."""
    return next((name for pattern, name in _IMAGES if pattern.match(data)), None)
