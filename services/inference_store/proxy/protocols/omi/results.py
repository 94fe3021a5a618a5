"""An output item's files: the predictions of Modzy's result format, and all else as it came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from inference_store.inference.json_text import Json, UnreadableJson, read_json
from inference_store.inference.task_types import predictions_in
from inference_store.proxy.protocols.answers import in_v2, output
from inference_store.proxy.protocols.documents import text_or_base64, written
from inference_store.proxy.protocols.problems import Problem

RESULTS: Final = "results.json"
ERROR: Final = "error"
_TASK_TYPES: Final = MappingProxyType(
    {
        "imageClassification": "image_classification",
        "textClassification": "text_classification",
        "objectDetection": "object_detection",
        "imageSegmentation": "image_segmentation",
    }
)
"""Values of `modelType`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one output item says."""

    response: bytes | None = field(default=None, repr=False)
    files: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """All files by name: JSON, text, or `{"b64": …}`."""
    task_type: str | None = None
    has_classes: bool = False
    ok: bool | None = None
    error: str | None = None
    problem: Problem | None = None


def result_of(files: Mapping[str, bytes], *, success: bool) -> Result:
    """An output item, read."""
    read = {name: _content(files[name]) for name in sorted(files)}
    if not success:
        error = files.get(ERROR, b"").decode("utf-8", "replace").strip() or None
        said = written({"error": error or "", "files": read})
        return Result(response=said, files=read, ok=False, error=error)
    name = _main(read)
    if name is None:
        sentence = (
            f"an output item has neither {RESULTS} nor a single file: no predictions are read"
        )
        problem = Problem(sentence, ("response", "unreadable"))
        return Result(response=in_v2([], files=read), files=read, problem=problem if read else None)
    elements, kind = _elements(read[name])
    model_type = _in(read[name], "modelType")
    return Result(
        response=in_v2([output(name, elements)], files=read),
        files=read,
        task_type=_TASK_TYPES.get(model_type) if type(model_type) is str else None,
        has_classes=kind == "classPredictions",
    )


def task_type_of_classes(datum: bytes) -> str:
    """Classes of a text, or of an image."""
    is_text = b"\0" not in datum and type(text_or_base64(datum)) is str
    return "text_classification" if is_text else "image_classification"


def _content(raw: bytes) -> Json:
    """A file's JSON, else its text, else its base64."""
    if raw.lstrip()[:1] in (b"{", b"["):
        try:
            return read_json(raw)
        except UnreadableJson:
            pass
    return text_or_base64(raw)


def _main(files: Mapping[str, Json]) -> str | None:
    """The file with the predictions: the one of Modzy's form, `results.json`, the only one."""
    of_form = [name for name in files if _elements(files[name])[1]]
    if RESULTS in files and (RESULTS in of_form or not of_form):
        return RESULTS
    return next(iter(of_form or files), None) if len(files) == 1 or of_form else None


def _elements(content: Json) -> tuple[list[Json], str | None]:
    """The predictions as the task types read them, and what the format calls them."""
    found = predictions_in(content)
    if found is not None:
        return found[1], found[0]
    result = _in(content, "result")
    return [content if result is None else result], None


def _in(content: Json, name: str) -> Any:
    """A member of the root, or of its `data`."""
    if not isinstance(content, dict):
        return None
    data = content.get("data")
    inner = data.get(name) if isinstance(data, dict) else None
    return content.get(name, inner)
