"""An inference as a JSON object, as pages and lines have it."""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from inference_store.index import tables
from inference_store.inference.metadata import list_entries
from inference_store.platform.json_encoding import fit_times
from inference_store.query.properties import LATENCIES, compute_latency
from inference_store.query.read import STORAGE_KEYS, Inference, get_storage_key

from .fixed_columns import FIXED_COLUMNS

_FORMATTED: Final = {"uid", "inference_id", "top_label", *STORAGE_KEYS.values()}
_UNCHANGED: Final = tuple(
    column.name
    for column in FIXED_COLUMNS
    if column.name in tables.inference.columns and column.name not in _FORMATTED
)
_get_unchanged: Final = itemgetter(*_UNCHANGED)
_TIMES: Final = tuple(name for name in _UNCHANGED if name.endswith("_at"))


def format_inference(
    model_id: str, inference: Inference, *, show_metadata: Callable[[bytes], Any] = list_entries
) -> dict[str, Any]:
    """Format an inference for JSON; its times have been through `fit_times`."""
    row = inference.row
    item: dict[str, Any] = {
        "uid": str(inference.uid),
        "model_id": model_id,
        "inference_id": row["inference_id"],
        "aliases": inference.aliases,
    }
    item.update(zip(_UNCHANGED, _get_unchanged(row), strict=True))
    fit_times(item, _TIMES)
    for name in LATENCIES:
        item[name] = compute_latency(row, name)
    item["data_size_bytes"] = row["data_size"]
    item["top_label"] = inference.top_label
    for blob, name in STORAGE_KEYS.items():
        item[name] = get_storage_key(inference, blob)
    if inference.metadata is not None:
        item["metadata"] = show_metadata(inference.metadata)
    if inference.prediction_values is not None:
        item["predictions"] = inference.predictions
    return item
