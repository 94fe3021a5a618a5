"""Modzy's result format, which OMI containers write into their result files."""

from typing import Final

from inference_store.inference.json_text import Json

CLASSES: Final = "classPredictions"
_LISTS: Final = (CLASSES, "detections")
_NAMES: Final = {"class": "label", "xMin": "xmin", "xMax": "xmax", "yMin": "ymin", "yMax": "ymax"}


def predictions_in(document: Json) -> tuple[str, list[Json]] | None:
    """Return the list in `{"result": {"classPredictions": [{"class", "score"}]}}`, also under
    `data`: its name, and its elements as `{label, score}`; None for any other document."""
    if not isinstance(document, dict):
        return None
    inner = document.get("data")
    result = document.get("result", inner.get("result") if isinstance(inner, dict) else None)
    for name in _LISTS:
        predictions = result.get(name) if isinstance(result, dict) else None
        if isinstance(predictions, list):
            return name, [_element(prediction) for prediction in predictions]
    return None


def _element(prediction: Json) -> Json:
    if not isinstance(prediction, dict) or "class" not in prediction:
        return prediction
    return {_NAMES.get(name, name): value for name, value in prediction.items()}
