"""The object keys that our own producers use, whether a key is one of them, and those of the
store itself.

`<prefix>/<model>/<yyyy>/<mm>/<dd>/<hh>/<capture_id>/{data,metadata,response}`: the capture id
is new for every capture, so such a key belongs to one inference only. A client's ids are
never in a key, for they repeat and hold `/`.

What the store adds is named by the inference's uid: `sidecars/…` and `metadata/…`. Certificates lie
under `certificates/…`.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote, unquote
from uuid import UUID

Kind = Literal["data", "metadata", "response"]
CERTIFICATES: Final = "certificates/"
# Beneath these lies what the store itself adds, by model.
SIDECARS = "sidecars"
EDITED = "metadata"
# Proof of what was erased: no event may name such a key, to have it shown or deleted.
CLOSED = (CERTIFICATES,)
# Producers may name hours of local clocks, UTC-12 to UTC+14; one more for a clock that is off.
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
    """The key of one blob of a capture."""
    place = f"{quote(model_id, safe='')}/{at.astimezone(UTC):%Y/%m/%d/%H}/{capture_id}/{kind}"
    return f"{prefix}/{place}" if prefix else place


def belongs_to(
    key: str, model_id: str | None, capture_id: UUID | None, received_at: datetime
) -> bool:
    """Whether a key is of this layout and names this capture of this model, received then: nothing
    else points to it. By the capture alone an event of another model could take it along.
    """
    if model_id is None or capture_id is None or (found := capture_of(key)) is None:
        return False
    model, hour, capture = found
    # a capture is looked for by its hour: one that names another day is told by a reference
    is_near = -_APART <= received_at - hour < _HOUR + _APART
    return capture == capture_id and unquote(model) == model_id and is_near


def around(hours: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """The spans of time, apart from each other, in which captures were received whose keys name
    these hours."""
    found: list[tuple[datetime, datetime]] = []
    for hour in sorted(set(hours)):
        lo, hi = hour - _APART, hour + _HOUR + _APART
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], hi)
        else:
            found.append((lo, hi))
    return found


def capture_of(key: str) -> tuple[str, datetime, UUID] | None:
    """The model's segment, the hour and the capture that a key of this layout names; else None."""
    folder, _, kind = key.rpartition("/")
    return _capture_of(folder) if kind in _KINDS else None


@lru_cache(maxsize=64)
def _capture_of(folder: str) -> tuple[str, datetime, UUID] | None:
    """Kept for the other keys of the capture, which come next."""
    found = _FOLDER.fullmatch(folder)
    if found is None:
        return None
    model, text, capture = found.groups("")
    hour = _hour_of(text)
    return None if hour is None else (model, hour, UUID(capture))


@lru_cache(maxsize=1024)
def _hour_of(text: str) -> datetime | None:
    """The hour that a key names. Kept: reading it takes longer than the rest of the key."""
    try:
        at = datetime.strptime(text, _HOURS).replace(tzinfo=UTC)
    except ValueError:
        return None
    # no inference is of a year beyond these
    return at if 2000 <= at.year < 9999 else None


def sidecar_key(model_id: str, at: datetime, uid: UUID) -> str:
    """The key of an inference's sidecar."""
    return f"{SIDECARS}/{segment_of(model_id)}/{at.astimezone(UTC):%Y/%m/%d/%H}/{uid}"


def edited_key(model_id: str, uid: UUID) -> str:
    """The key of the metadata blob that an edit makes."""
    return f"{EDITED}/{segment_of(model_id)}/{uid}"


def is_edited(storage_key: str) -> bool:
    """Whether a storage key, with its bucket, is one that an edit makes."""
    *_, folder, _, uid = ["", "", *storage_key.rsplit("/", 2)]
    try:
        return folder.endswith(f"/{EDITED}") and str(UUID(uid)) == uid
    except ValueError:
        return False


def segment_of(model_id: str) -> str:
    """A model as one segment of a key: escaped, and hashed where that is too long."""
    escaped = quote(model_id, safe="")
    if escaped in {".", ".."}:  # no client can address them
        return escaped.replace(".", "%2E")
    if len(escaped) <= _LONGEST_SEGMENT:
        return escaped
    digest = blake2b(model_id.encode(), digest_size=16).hexdigest()
    return f"{escaped[: _LONGEST_SEGMENT - 33]}~{digest}"
