"""The tensors of a model's answer that are boxes, scores and labels: part of its registration."""

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict

from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.json_text import storable


def _storable(name: str) -> str:
    if not storable(name):
        raise ValueError("it holds NUL or a lone surrogate")
    return name


Tensor: TypeAlias = Annotated[str, AfterValidator(_storable)]
BoxFormat: TypeAlias = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
Units: TypeAlias = Literal["pixels", "shares"]
Activation: TypeAlias = Literal["none", "softmax", "sigmoid"]


class OutputMapping(DocumentedModel):
    """How tensors become predictions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    boxes: Tensor | None = None
    """Name of the tensor of boxes, [N, 4]."""
    scores: Tensor | None = None
    """Name of the tensor of scores, [N]."""
    labels: Tensor | None = None
    """Name of the tensor of labels, [N]: strings, or indexes of the class labels."""
    class_probabilities: Tensor | None = None
    """Name of the tensor of one score a class, [N, C], in the order of the class labels."""
    box_format: BoxFormat = "xyxy"
    """Order of a box's four numbers: corners, corners with y first, corner and size, or centre
    and size."""
    units: Units = "pixels"
    """Boxes in pixels, or in shares of the width and height."""
    activation: Activation = "none"
    """What makes scores of the raw numbers: softmax over the classes, or sigmoid of each."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs of the request."""
