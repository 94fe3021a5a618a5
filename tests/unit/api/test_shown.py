"""An answer has the fields of the dataclass that it shows, and is validated."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import pytest
from pydantic import ValidationError

from inference_store.api.answer import Answer
from inference_store.api.shown import AnyText, Shown


@dataclass(frozen=True, slots=True)
class Thing:
    id: int
    """Given once."""
    model: int | None
    state: Literal["new", "old"] = "new"
    """How old it is."""
    at: datetime = datetime(2026, 11, 1, tzinfo=UTC)

    @property
    def is_new(self) -> bool:
        return self.state == "new"


class ShownThing(Shown, of=Thing, instead={"model": ("model_id", "model_name")}):
    model_id: str | None
    """Null: there is none."""
    model_name: AnyText | None
    state: str
    is_new: bool
    why: str | None = None


class ShownThings(Shown):
    items: list[ShownThing]


def test_fields_are_those_of_the_dataclass_in_their_order() -> None:
    names = ["id", "model_id", "model_name", "state", "at", "is_new", "why"]
    assert list(ShownThing.model_fields) == names
    assert ShownThing.model_json_schema()["required"] == names[:-1]


def test_docstrings_are_those_of_the_dataclass_unless_the_model_has_its_own() -> None:
    properties = ShownThing.model_json_schema()["properties"]
    descriptions = [properties[name].get("description") for name in properties]
    assert descriptions[:3] == ["Given once.", "Null: there is none.", None]
    assert descriptions[3:] == ["How old it is.", None, None, None]


def test_values_come_from_the_dataclass_and_its_properties() -> None:
    thing = ShownThing.show(Thing(1, None, "old"), model_id="m", model_name="\udc80")
    assert (thing.model_id, thing.state, thing.is_new) == ("m", "old", False)


def test_an_answer_that_breaks_its_promise_is_refused() -> None:
    with pytest.raises(ValidationError, match="model_id"):
        ShownThing.show(Thing(1, None), model_name=None)
    with pytest.raises(ValidationError, match="model_name"):
        ShownThing.show(Thing(1, None), model_id=None, model_name=7)


def test_json_has_no_field_that_was_not_given() -> None:
    things = [
        ShownThing.show(Thing(1, 1), model_id="m", model_name="n"),
        ShownThing.show(Thing(1, 1), model_id="m", model_name="\udc80", why="because"),
    ]
    first, second = json.loads(bytes(Answer(ShownThings(items=things)).body))["items"]
    expected = {"id": 1, "model_id": "m", "model_name": "n", "state": "new", "is_new": True}
    assert first == expected | {"at": "2026-11-01T00:00:00.000000Z"}
    assert second == first | {"model_name": "\udc80", "why": "because"}
