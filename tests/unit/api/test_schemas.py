"""What the OpenAPI says of names is what is read of them."""

import re

import pytest

from inference_store.api.chosen import Chosen
from inference_store.api.schemas.chosen_fields import FIELD_PATTERN, FIELDS, PARTS
from inference_store.api.schemas.links import InferenceLink
from inference_store.api.schemas.questions import InferenceQuery, MetadataCondition
from inference_store.store.errors import Invalid
from inference_store.store.operators import OPERATORS

_NAMES = [*FIELDS, *(f"{field}.{part}" for field, parts in PARTS.items() for part in parts)]


@pytest.mark.parametrize("name", [*_NAMES, "metadata.frame_number", "metadata.a.b[]"])
def test_a_field_matches_the_pattern(name: str) -> None:
    assert re.search(FIELD_PATTERN, name)
    assert Chosen.of([name], [])


@pytest.mark.parametrize("name", ["frame_number", "predictions.nothing", "urls.", "uid.x", ""])
def test_what_is_no_field_does_not_match_the_pattern(name: str) -> None:
    assert not re.search(FIELD_PATTERN, name)
    with pytest.raises(Invalid):
        Chosen.of([name], [])


def test_the_operators_are_an_enum() -> None:
    schema = MetadataCondition.model_json_schema()["properties"]["operator"]
    assert schema["enum"] == list(OPERATORS)


@pytest.mark.parametrize("sort", ["-received_at", "frame_number", "metadata.width", "tag:string"])
def test_a_sort_matches_its_pattern(sort: str) -> None:
    schema = InferenceQuery.model_json_schema()["properties"]["sort"]
    assert re.search(schema["pattern"], sort)
    assert InferenceQuery(sort=sort).sort == sort


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (["inference_id,uid"], ["inference_id", "uid"]),
        (["inference_id, metadata.a", "top_label"], ["inference_id", "metadata.a", "top_label"]),
        (["metadata.a,metadata.b,uid"], ["metadata.a", "metadata.b", "uid"]),
        (["metadata.a,b"], ["metadata.a,b"]),
        (["metadata.a,b, uid"], ["metadata.a,b", "uid"]),
        (["uid,nothing"], ["uid", "nothing"]),
    ],
)
def test_fields_of_a_link_are_split_at_commas(given: list[str], fields: list[str]) -> None:
    assert InferenceLink(fields=given).fields == fields
