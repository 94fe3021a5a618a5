"""The fields that a producer may add to an event reach the index, filters, answers and docs."""

import re
from dataclasses import fields
from pathlib import Path

from inference_store.api.inference_models import ShownInference
from inference_store.index.tables import inference
from inference_store.inference.events import FIELDS
from inference_store.inference.events.event import Extras
from inference_store.query.properties import PROPERTIES

_PRODUCE = Path(__file__).parents[2] / "docs" / "how-to" / "produce.md"
# The registration stores the first two.
_COLUMNS = {field.name for field in fields(Extras)} - {"project_id", "model_name"}
_NO_PROPERTY = {"capture_id"}
_SHOWN_AS = {"data_size": "data_size_bytes"}


def test_a_field_of_the_event_is_a_column_a_property_and_part_of_answers() -> None:
    assert _COLUMNS
    assert set(inference.columns.keys()) >= _COLUMNS, "see index/tables/inferences.py; migrate"
    assert set(PROPERTIES) >= _COLUMNS - _NO_PROPERTY, "give the column a `doc`"
    shown_names = {_SHOWN_AS.get(name, name) for name in _COLUMNS}
    assert shown_names <= set(ShownInference.model_fields), "see api/inference_models.py"


def test_it_is_documented_for_producers() -> None:
    page = _PRODUCE.read_text()
    event = page[page.index("## The event") : page.index("## Sidecars")]
    assert not [name for name in FIELDS if not re.search(rf'["`]{name}["`]', event)]
