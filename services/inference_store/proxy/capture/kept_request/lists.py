"""The lists that hold data in V2's JSON."""

from inference_store.store import json_spans
from inference_store.store.json_spans import Span


def data_lists(body: bytes) -> list[Span]:
    """The `data` of each of the `inputs`; none where a body is anything else."""
    inputs = json_spans.by_name(body, json_spans.root(body)).get("inputs")
    tensors = json_spans.items(body, inputs) if inputs else ()
    found = (json_spans.by_name(body, each).get("data") for each in tensors)
    return [each for each in found if each]
