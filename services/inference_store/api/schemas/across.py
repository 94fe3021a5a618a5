"""Questions about the inferences of several models."""

from typing import Annotated

from pydantic import Field, model_validator

from .fields import Body, ShortText
from .questions import Conditions, InferenceQuery


class Models(Body):
    """Which models; neither: all that the caller may read."""

    project_id: ShortText | None = None
    """The models of this project that the caller may read."""
    model_ids: Annotated[list[ShortText], Field(min_length=1, max_length=1000)] | None = None
    """These models, each of which the caller may read."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Models":
        if self.project_id is not None and self.model_ids is not None:
            raise ValueError("project_id and model_ids cannot both be given: take one of them")
        return self


class ConditionsAcross(Models, Conditions):
    """Which inferences of which models; everything that is given must hold."""


class InferenceQueryAcross(Models, InferenceQuery):
    """A page of the inferences of several models."""
