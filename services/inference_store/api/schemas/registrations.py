"""Registrations of models."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from inference_store.api.shown import Shown
from inference_store.index.registrations import Details
from inference_store.inference.ids import check_id
from inference_store.inference.task_types import TASK_TYPES, OutputMapping, task_type_of

from .fields import Body, ShortText, Text
from .policies import ShownPolicy


def _task_type(name: str) -> str:
    """The canonical name of a task type, by any of its spellings."""
    task_type = task_type_of(name)
    if task_type is TASK_TYPES["unknown"] and name != "unknown":
        raise ValueError(f"there is no task type {name!r}; known are {', '.join(TASK_TYPES)}")
    return next(key for key, entry in TASK_TYPES.items() if entry is task_type)


class RegistrationBody(Body):
    """What is said of a model. What is left out is unset; it applies to events still to come."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "Hallway detector",
                    "project_id": "building-7",
                    "task_type": "object_detection",
                    "class_labels": ["person", "dog"],
                }
            ]
        }
    )

    project_id: Annotated[Text, AfterValidator(check_id)] | None = None
    name: ShortText | None = None
    task_type: Annotated[Text, Field(max_length=64), AfterValidator(_task_type)] | None = Field(
        default=None, description=f"One of {', '.join(TASK_TYPES)}, in any common spelling."
    )
    class_labels: Annotated[list[ShortText], Field(max_length=100_000)] = Field(default=[])
    """The names of the classes, in the order of the model's outputs."""
    output_mapping: OutputMapping | None = None
    """Which tensors of the answer are boxes, scores and labels."""
    reason: ShortText | None = None
    """Why it moves; needed where a minimum age is left behind."""

    def details(self) -> Details:
        """Return it as the store takes it."""
        return Details(
            project_id=self.project_id,
            name=self.name,
            task_type=self.task_type,
            class_labels=tuple(self.class_labels),
            output_mapping=self.output_mapping,
        )


class PendingMove(Shown):
    """A move that does not count for retention yet. To move it back takes it away."""

    from_project_id: str | None
    """The project that it left: its policy decides until then."""
    effective_at: datetime


class ShownRegistration(Shown):
    """A model's entry."""

    model_id: str
    project_id: str | None
    name: str | None
    task_type: str | None
    class_labels: tuple[str, ...]
    output_mapping: OutputMapping | None
    registered_by: str
    """`event`: the first event of an unknown model made it; `ledger`: a replay of the ledger did;
    `removed`: it goes with what is left of it; else `api`."""
    revision: int
    registered_at: datetime
    updated_at: datetime
    pending_move: PendingMove | None
    """Where it has moved, and another policy does not decide yet."""


class MoveWarning(Shown):
    """Which retention policies decide about a model after a move, also about what is stored."""

    effective_at: datetime
    """From when on. Until then those of the project that it left decide."""
    policies: list[ShownPolicy]
    """The nearest first. What none of them deletes is kept."""


class PutRegistration(ShownRegistration):
    """A model's entry as it was just put."""

    warning: MoveWarning | None = None
    """Only where it was moved to another project."""


class RegistrationPage(Shown):
    """Registrations, in order of model id."""

    items: list[ShownRegistration]
    next: str | None
