"""The descriptions of fields in a schema are the docstrings of those fields in the source."""

from importlib import import_module
from pathlib import Path
from py_compile import compile as compile_file
from typing import Annotated, Any

import pytest
from pydantic import Field

from inference_store.inference.field_docs import DocumentedModel, field_docs


class Place(DocumentedModel):
    """The address of something."""

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

    class Within(DocumentedModel):
        """A part of the place."""

        street: str
        """Of the part."""


class House(Place):
    """A place of its own."""

    city: str = "Basel"
    """Where it was moved to."""
    beside: Place | None = None
    """Another."""


@pytest.mark.parametrize("mode", ["validation", "serialization"])
def test_the_schema_has_the_docstrings(mode: Any) -> None:
    schema = House.model_json_schema(mode=mode)
    descriptions = {name: field.get("description") for name, field in schema["properties"].items()}
    assert descriptions == {
        "street": "Its street,\nand its number.",
        "city": "Where it was moved to.",
        "given": "Given to the field.",
        "postCode": "Four digits.",
        "beside": "Another.",
    }
    assert schema["$defs"]["Place"]["properties"]["street"]["description"] == descriptions["street"]


def test_has_no_docs_without_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "without_source.py"
    source.write_text(
        "from inference_store.inference.field_docs import DocumentedModel\n"
        'class Made(DocumentedModel):\n    name: str = ""\n    """Its name."""\n'
    )
    compile_file(str(source), str(tmp_path / "without_source.pyc"), doraise=True)
    source.unlink()
    monkeypatch.syspath_prepend(tmp_path)
    model: type[DocumentedModel] = import_module("without_source").Made
    assert field_docs(model) == {}
    assert "description" not in model.model_json_schema()["properties"]["name"]
