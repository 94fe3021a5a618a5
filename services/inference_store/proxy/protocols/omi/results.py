"""Reads the files of an output item: the predictions of Modzy's result format, and other files
unchanged."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from inference_store.inference.json_text import Json, UnreadableJson, read_json
from inference_store.inference.task_types import predictions_in
from inference_store.proxy.protocols.answers import output, v2_answer_json
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
    """The result in one output item."""

    response: bytes | None = field(default=None, repr=False)
    files: Mapping[str, Json] = field(default_factory=dict, repr=False)
    """All files by name: JSON, text, or `{"b64": …}`."""
    task_type: str | None = None
    has_classes: bool = False
    ok: bool | None = None
    error: str | None = None
    problem: Problem | None = None


def read_result(files: Mapping[str, bytes], *, success: bool) -> Result:
    """Return the result in an output item's files."""
    contents = {name: _read_content(files[name]) for name in sorted(files)}
    if not success:
        error = files.get(ERROR, b"").decode("utf-8", "replace").strip() or None
        response = written({"error": error or "", "files": contents})
        return Result(response=response, files=contents, ok=False, error=error)
    name = _find_main(contents)
    if name is None:
        sentence = (
            f"an output item has neither {RESULTS} nor a single file: no predictions are read"
        )
        problem = Problem(sentence, ("response", "unreadable"))
        return Result(
            response=v2_answer_json([], files=contents),
            files=contents,
            problem=problem if contents else None,
        )
    elements, kind = _read_elements(contents[name])
    model_type = _find_member(contents[name], "modelType")
    return Result(
        response=v2_answer_json([output(name, elements)], files=contents),
        files=contents,
        task_type=_TASK_TYPES.get(model_type) if type(model_type) is str else None,
        has_classes=kind == "classPredictions",
    )


def task_type_of_classes(datum: bytes) -> str:
    """Return the task type of classes: of a text, or of an image."""
    is_text = b"\0" not in datum and type(text_or_base64(datum)) is str
    return "text_classification" if is_text else "image_classification"


def _read_content(raw: bytes) -> Json:
    """Return a file's JSON, else its text, else its base64."""
    if raw.lstrip()[:1] in (b"{", b"["):
        try:
            return read_json(raw)
        except UnreadableJson:
            pass
    return text_or_base64(raw)


def _find_main(files: Mapping[str, Json]) -> str | None:
    """Return the file with the predictions: that in Modzy's format, `results.json`, or the only
    one."""
    of_form = [name for name in files if _read_elements(files[name])[1]]
    if RESULTS in files and (RESULTS in of_form or not of_form):
        return RESULTS
    return next(iter(of_form or files), None) if len(files) == 1 or of_form else None


def _read_elements(content: Json) -> tuple[list[Json], str | None]:
    """Return the predictions as the task types read them, and their name in the format."""
    predictions = predictions_in(content)
    if predictions is not None:
        return predictions[1], predictions[0]
    result = _find_member(content, "result")
    return [content if result is None else result], None


def _find_member(content: Json, name: str) -> Any:
    """Return a member of the root, or of its `data`."""
    if not isinstance(content, dict):
        return None
    data = content.get("data")
    inner = data.get(name) if isinstance(data, dict) else None
    return content.get(name, inner)
