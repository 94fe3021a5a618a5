"""The fields that a producer may add to an event reach the index, filters, answers and docs."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from inference_store.api.schemas.inferences import ShownInference
from inference_store.index.tables import inference
from inference_store.inference.events import FIELDS
from inference_store.inference.events.event import Extras
from inference_store.query.properties import PROPERTIES

_PRODUCE = Path(__file__).parents[2] / "docs" / "how-to" / "produce.md"
_EXTRAS = {field.name for field in fields(Extras)}
_OF_THE_MODEL = {"project_id", "model_name"}
"""The registration stores them."""
_NO_PROPERTY = {"capture_id"}
_SHOWN_AS = {"data_size": "data_size_bytes"}
_COLUMNS = sorted(_EXTRAS - _OF_THE_MODEL)


@pytest.mark.parametrize("name", _COLUMNS)
def test_a_field_of_the_event_is_a_column(name: str) -> None:
    assert name in inference.columns, "add it to index/tables/inference.py, and a migration"


@pytest.mark.parametrize("name", sorted({*_COLUMNS} - _NO_PROPERTY))
def test_its_column_has_a_doc_and_is_a_property(name: str) -> None:
    assert name in PROPERTIES, "give the column a `doc`"


@pytest.mark.parametrize("name", _COLUMNS)
def test_it_is_part_of_answers(name: str) -> None:
    assert _SHOWN_AS.get(name, name) in ShownInference.model_fields, (
        "add it to ShownInference in api/schemas/inferences.py"
    )


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_it_is_documented_for_producers(name: str) -> None:
    page = _PRODUCE.read_text()
    event = page[page.index("## The event") : page.index("## Sidecars")]
    assert re.search(rf'["`]{name}["`]', event), "add it to docs/how-to/produce.md"
