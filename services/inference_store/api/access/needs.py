"""The needs of a route, declared with the route: the OpenAPI and the tests read them there."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from inference_store.access.rights import Right

EXTENSION: Final = "x-needs"


class Over(StrEnum):
    """The extent that the right must have been given for."""

    MODEL = "model"
    """The model in the path."""
    PROJECT = "project"
    """The project in the path: its models, also those to come."""
    SOME = "some"
    """Any model at all: the answer is narrowed to those it was given over."""
    EVERYTHING = "everything"
    """No bounds: what is asked belongs to no model."""
    CALLER = "caller"
    """The caller alone: whoever is known may ask, with whatever rights."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A right, and the extent that it is needed for."""

    right: Right
    over: Over


def needs(right: Right, over: Over = Over.MODEL) -> dict[str, Any]:
    """Build a route's `openapi_extra`."""
    return {EXTENSION: {"right": right.value, "over": over.value}}


def read_needs(extra: dict[str, Any] | None) -> Needs:
    """Read what a route's `openapi_extra` declares. Raises TypeError if it declares nothing."""
    declared = (extra or {}).get(EXTENSION)
    if declared is None:
        raise TypeError("a route under /v1 says what it needs: openapi_extra=needs(Right.…)")
    return Needs(Right(declared["right"]), Over(declared["over"]))
