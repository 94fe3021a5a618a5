"""The object keys that our own producers use, whether a key is one of them, and those of the
store itself.

`<prefix>/<model>/<yyyy>/<mm>/<dd>/<hh>/<capture_id>/{data,metadata,response}`: the capture id
is new for every capture, so such a key belongs to one inference only. A client's ids are
never in a key, for they repeat and hold `/`.

What the store adds is named by the inference's uid: `sidecars/…` and `metadata/…`. Certificates lie
under `certificates/…`.
"""

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote, unquote
from uuid import UUID

Kind = Literal["data", "metadata", "response"]
CERTIFICATES: Final = "certificates/"
_KINDS = frozenset({"data", "metadata", "response"})
# Beneath these lies what the store itself adds, by model.
SIDECARS = "sidecars"
EDITED = "metadata"
# Proof of what was erased: no event may name such a key, to have it shown or deleted.
CLOSED = (CERTIFICATES,)
# Servers that keep objects as files allow 255 bytes between two slashes.
_LONGEST_SEGMENT = 200


def key_of(prefix: str, model_id: str, at: datetime, capture_id: UUID, kind: Kind) -> str:
    """The key of one blob of a capture."""
    place = f"{quote(model_id, safe='')}/{at.astimezone(UTC):%Y/%m/%d/%H}/{capture_id}/{kind}"
    return f"{prefix}/{place}" if prefix else place


def belongs_to(key: str, model_id: str | None, capture_id: UUID | None) -> bool:
    """Whether a key is of this layout and names this capture of this model: nothing else points
    to it. By the capture alone an event of another model could take it along.
    """
    if model_id is None or capture_id is None:
        return False
    *_, model, year, month, day, hour, capture, kind = [""] * 7 + key.rsplit("/", 7)
    hours = year + month + day + hour
    return (
        kind in _KINDS
        and capture == str(capture_id)
        and unquote(model) == model_id
        and len(hours) == len("yyyymmddhh")
        and hours.isdigit()
    )


def capture_of(key: str) -> tuple[str, datetime, UUID] | None:
    """The model's segment, the hour and the capture that a key of this layout names; else None."""
    *_, model, year, month, day, hour, capture, kind = [""] * 7 + key.rsplit("/", 7)
    try:
        at = datetime.strptime(f"{year}/{month}/{day}/{hour}", "%Y/%m/%d/%H").replace(tzinfo=UTC)
        found = UUID(capture)
    except ValueError:
        return None
    return (model, at, found) if kind in _KINDS and capture == str(found) else None


def sidecar_key(model_id: str, at: datetime, uid: UUID) -> str:
    """The key of an inference's sidecar."""
    return f"{SIDECARS}/{segment_of(model_id)}/{at.astimezone(UTC):%Y/%m/%d/%H}/{uid}"


def edited_key(model_id: str, uid: UUID) -> str:
    """The key of the metadata blob that an edit makes."""
    return f"{EDITED}/{segment_of(model_id)}/{uid}"


def segment_of(model_id: str) -> str:
    """A model as one segment of a key: escaped, and hashed where that is too long."""
    escaped = quote(model_id, safe="")
    if escaped in {".", ".."}:  # no client can address them
        return escaped.replace(".", "%2E")
    if len(escaped) <= _LONGEST_SEGMENT:
        return escaped
    digest = blake2b(model_id.encode(), digest_size=16).hexdigest()
    return f"{escaped[: _LONGEST_SEGMENT - 33]}~{digest}"
