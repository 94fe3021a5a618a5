"""Which erasures a list has."""

from typing import Annotated

from pydantic import Field

from inference_store.erasure.progress import STATES, State

from .fields import ShortText
from .links import PageParameters


class ErasureParameters(PageParameters):
    """Which page of which erasures; everything that is given must hold."""

    state: Annotated[list[State], Field(max_length=len(STATES))] | None = None
    """In this state; repeat it for several."""
    model_id: ShortText | None = None
    """Of this model, also together with others."""
