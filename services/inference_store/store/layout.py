"""The object keys that our own producers use, and whether a key is one of them.

`<prefix>/<model>/<yyyy>/<mm>/<dd>/<hh>/<capture_id>/{data,metadata,response}`: the capture id
is new for every capture, so such a key belongs to one inference only. A client's ids are
never in a key, for they repeat and hold `/`.
"""

from datetime import UTC, datetime
from typing import Literal
from urllib.parse import quote
from uuid import UUID

Kind = Literal["data", "metadata", "response"]
_KINDS = frozenset({"data", "metadata", "response"})


def key_of(prefix: str, model_id: str, at: datetime, capture_id: UUID, kind: Kind) -> str:
    """The key of one blob of a capture."""
    place = f"{quote(model_id, safe='')}/{at.astimezone(UTC):%Y/%m/%d/%H}/{capture_id}/{kind}"
    return f"{prefix}/{place}" if prefix else place


def belongs_to(key: str, capture_id: UUID | None) -> bool:
    """Whether a key is of this layout and names this capture: nothing else points to it."""
    if capture_id is None:
        return False
    *_, year, month, day, hour, capture, kind = [""] * 6 + key.rsplit("/", 6)
    hours = year + month + day + hour
    return (
        kind in _KINDS
        and capture == str(capture_id)
        and len(hours) == len("yyyymmddhh")
        and hours.isdigit()
    )
