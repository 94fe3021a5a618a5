"""The input items of OMI's `Run`: each belongs to one inference, with its file names."""

from inference_store.inference.json_spans import Span

from .protobuf_fields import fields
from .search import OwnedSpan

_INPUTS = 1


def run_items(body: bytes) -> list[OwnedSpan] | None:
    """The span of each item; None: the message cannot be read."""
    try:
        found = [each for each in fields(body, Span(0, len(body))) if each.number == _INPUTS]
    except ValueError:
        return None
    return [OwnedSpan(*each.whole, index) for index, each in enumerate(found)]
