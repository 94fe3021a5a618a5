"""Models and their metadata keys."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMove:
    """A move to another project that does not count for retention yet."""

    from_project_id: str | None
    effective_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputMapping:
    """Which tensors of the model's response are boxes, scores and labels."""

    boxes: str | None = None
    scores: str | None = None
    labels: str | None = None
    class_probabilities: str | None = None
    box_format: Literal["xyxy", "yxyx", "xywh", "cxcywh"] = "xyxy"
    units: Literal["pixels", "shares"] = "pixels"
    activation: Literal["none", "softmax", "sigmoid"] = "none"
    batched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A model's entry in the store."""

    model_id: str
    project_id: str | None
    name: str | None
    task_type: str | None
    class_labels: tuple[str, ...]
    output_mapping: OutputMapping | None
    registered_by: str
    revision: int
    registered_at: datetime
    updated_at: datetime
    pending_move: PendingMove | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenType:
    """A type under which a metadata key came."""

    type: str
    flag: str
    count: int
    examples: tuple[str, ...]
    first_seen: datetime
    last_seen: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataKey:
    """A metadata key of a model."""

    name: str
    compared_as: tuple[str, ...]
    conflict: bool
    """Its values came as types that cannot be compared with each other."""
    count: int
    types: tuple[SeenType, ...]
