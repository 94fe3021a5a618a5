"""Registers the model of the smoke test."""

from typing import Final

import orjson

from .capture import MODEL
from .rest import Refused, Rest

_PATH: Final = f"/v1/models/{MODEL}"
_TASK_TYPE: Final = {"task_type": "image_classification"}
_KEPT: Final = ("project_id", "name", "class_labels", "output_mapping")


def register_model(api: Rest) -> None:
    """Register the model, for ingesters that refuse unknown ones.

    An event that came first has registered it without a task type, and no prediction of it would
    be indexed: then set the task type alone. Raises Refused.
    """
    try:
        registered = orjson.loads(api.ask("GET", _PATH))
    except Refused as refused:
        if refused.status != 404:
            raise
        api.ask("PUT", _PATH, {"name": "Smoke test", **_TASK_TYPE})
        return
    if registered.get("task_type") in {None, "unknown"}:
        details = {name: registered[name] for name in _KEPT if registered.get(name) is not None}
        api.ask("PUT", _PATH, details | _TASK_TYPE)
