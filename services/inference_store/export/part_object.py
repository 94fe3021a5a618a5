"""An inference as the JSON of parts has it."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from .columns import Columns
from .fixed_columns import Row
from .inference_object import format_inference


class ObjectFormat:
    """Builds the object of each inference: what the API shows of it, and what an export adds."""

    def __init__(self, columns: Columns) -> None:
        self._names = {column.name for column in columns.fixed}
        self._names |= set() if columns.metadata is None else {"metadata"}
        self._names |= set() if columns.predictions is None else {"predictions"}

    def build(self, row: Row, *, contents: bool = True) -> dict[str, Any]:
        """Return the object; its times have been through `fit_times`. `urls`: the links of the API;
        `bytes`: in base64, if there are `contents`."""
        item = format_inference(row.model_id, row.inference)
        chosen = {name: value for name, value in item.items() if name in self._names}
        if row.urls is not None:
            chosen["urls"] = row.urls
        if contents and row.contents is not None:
            chosen["bytes"] = _encode(row.contents)
        return chosen


def _encode(contents: Mapping[str, bytes | None]) -> dict[str, str | None]:
    return {
        blob: None if content is None else b64encode(content).decode()
        for blob, content in contents.items()
    }
