"""What a schema says of a model's fields is what stands under them in its source."""

from importlib import import_module
from pathlib import Path
from py_compile import compile as compile_file
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from inference_store.inference.documented import Documented, field_docs


class Place(Documented):
    """Where something is."""

    street: str
    """Its street,
    and its number."""
    city: str = "Bern"
    given: Annotated[str, Field(description="Given to the field.")] = ""
    """Not this."""
    post_code: int = Field(default=0, alias="postCode")
    """Four digits."""

    def shown(self) -> str:
        """No field's."""
        country: str = "CH"
        """No field's either."""
        return self.city + country

    class Within(Documented):
        """A part of the place."""

        street: str
        """Of the part."""


class House(Place):
    """A place of its own."""

    city: str = "Basel"
    """Where it was moved to."""
    beside: Place | None = None
    """Another."""


class AsPydanticReads(BaseModel):
    """The same source as pydantic reads it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    street: str
    """Its street,
    and its number."""
    beside: Place | None = None
    """Another."""


def test_a_field_is_what_its_docstring_says() -> None:
    assert field_docs(Place) == {
        "street": "Its street,\nand its number.",
        "given": "Given to the field.",
        "post_code": "Four digits.",
    }
    assert field_docs(Place.Within) == {"street": "Of the part."}


def test_an_inherited_field_keeps_its_docstring_and_another_has_its_own() -> None:
    told = field_docs(House)
    assert told["street"] == "Its street,\nand its number."
    assert told["city"] == "Where it was moved to."


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_schema_says_it(mode: Any) -> None:
    schema = House.model_json_schema(mode=mode)
    told = {name: one.get("description") for name, one in schema["properties"].items()}
    assert told == {
        "street": "Its street,\nand its number.",
        "city": "Where it was moved to.",
        "given": "Given to the field.",
        "postCode": "Four digits.",
        "beside": "Another.",
    }
    assert schema["$defs"]["Place"]["properties"]["street"]["description"] == told["street"]


def test_it_says_what_pydantic_would_say() -> None:
    ours, theirs = House.model_json_schema(), AsPydanticReads.model_json_schema()
    for name in ("street", "beside"):
        assert ours["properties"][name] == theirs["properties"][name]


def test_without_its_source_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "without_source.py"
    source.write_text(
        "from inference_store.inference.documented import Documented\n"
        'class Made(Documented):\n    name: str = ""\n    """Its name."""\n'
    )
    compile_file(str(source), str(tmp_path / "without_source.pyc"), doraise=True)
    source.unlink()
    monkeypatch.syspath_prepend(tmp_path)
    made: type[Documented] = import_module("without_source").Made
    assert field_docs(made) == {}
    assert "description" not in made.model_json_schema()["properties"]["name"]
