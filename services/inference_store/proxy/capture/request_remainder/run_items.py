"""The input items of OMI's `Run`: each belongs to one inference, with its file names."""

from inference_store.inference.json_spans import Span

from .protobuf_fields import fields
from .search import OwnedSpan

_INPUTS = 1


def run_items(body: bytes) -> list[OwnedSpan] | None:
    """Return the span of each item; None if the message cannot be read."""
    try:
        items = [field for field in fields(body, Span(0, len(body))) if field.number == _INPUTS]
    except ValueError:
        return None
    return [OwnedSpan(*item.whole, index) for index, item in enumerate(items)]
