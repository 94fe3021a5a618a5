"""What a route needs, said once where it is declared: the OpenAPI and the tests read it there."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from inference_store.access.rights import Right

EXTENSION: Final = "x-needs"


class Over(StrEnum):
    """What the right must have been given over."""

    MODEL = "model"
    """The model in the path."""
    PROJECT = "project"
    """The project in the path: its models, also those to come."""
    SOME = "some"
    """Any model at all: the answer is narrowed to those it was given over."""
    EVERYTHING = "everything"
    """No bounds: what is asked belongs to no model."""


@dataclass(frozen=True, slots=True)
class Needs:
    """A right, and what over."""

    right: Right
    over: Over


def needs(right: Right, over: Over = Over.MODEL) -> dict[str, Any]:
    """A route's `openapi_extra`."""
    return {EXTENSION: {"right": right.value, "over": over.value}}


def needs_of(extra: dict[str, Any] | None) -> Needs:
    """What a route's `openapi_extra` says. Raises TypeError: every route says it."""
    said = (extra or {}).get(EXTENSION)
    if said is None:
        raise TypeError("a route under /v1 says what it needs: openapi_extra=needs(Right.…)")
    return Needs(Right(said["right"]), Over(said["over"]))
