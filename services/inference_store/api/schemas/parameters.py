"""Query parameters."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from inference_store.inference.field_docs import field_docs


class Parameters(BaseModel):
    """Query parameters: text that is read as what it should be."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """FastAPI documents parameters by their fields, never by the model's JSON schema."""
        for name, doc in field_docs(cls).items():
            cls.model_fields[name].description = doc


class PageParameters(Parameters):
    """Which page of a list."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    """Most items of a page."""
    cursor: Annotated[str, Field(max_length=2000)] | None = None
    """`next` of the page before."""
