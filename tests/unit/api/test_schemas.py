"""The names in the OpenAPI document are the names that the api reads."""

import re

import pytest
from pydantic import ValidationError

from inference_store.api.field_selection import FieldSelection
from inference_store.api.schemas.chosen_fields import FIELD_PATTERN, FIELDS, PARTS
from inference_store.api.schemas.links import InferenceLink
from inference_store.api.schemas.policies import PolicyBody, RuleBody, ShownRule, ShownVersion
from inference_store.api.schemas.questions import InferenceQuery, MetadataCondition
from inference_store.api.schemas.ranges import ScoreRange, Window
from inference_store.inference.errors import Invalid
from inference_store.query.operators import OPERATORS

_NAMES = [*FIELDS, *(f"{field}.{part}" for field, parts in PARTS.items() for part in parts)]


@pytest.mark.parametrize("name", [*_NAMES, "metadata.frame_number", "metadata.a.b[]"])
def test_a_field_matches_the_pattern(name: str) -> None:
    assert re.search(FIELD_PATTERN, name)
    assert FieldSelection.of([name], [])


@pytest.mark.parametrize("name", ["frame_number", "predictions.nothing", "urls.", "uid.x", ""])
def test_the_pattern_rejects_unknown_fields(name: str) -> None:
    assert not re.search(FIELD_PATTERN, name)
    with pytest.raises(Invalid):
        FieldSelection.of([name], [])


def test_the_operators_are_an_enum() -> None:
    schema = MetadataCondition.model_json_schema()["properties"]["operator"]
    assert schema["enum"] == list(OPERATORS)


@pytest.mark.parametrize("sort", ["-received_at", "frame_number", "metadata.width", "tag:string"])
def test_a_sort_matches_its_pattern(sort: str) -> None:
    schema = InferenceQuery.model_json_schema()["properties"]["sort"]
    assert re.search(schema["pattern"], sort)
    assert InferenceQuery(sort=sort).sort == sort


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        (["inference_id,uid"], ["inference_id", "uid"]),
        (["inference_id, metadata.a", "top_label"], ["inference_id", "metadata.a", "top_label"]),
        (["metadata.a,metadata.b,uid"], ["metadata.a", "metadata.b", "uid"]),
        (["metadata.a,b"], ["metadata.a,b"]),
        (["metadata.a,b, uid"], ["metadata.a,b", "uid"]),
        (["uid,nothing"], ["uid", "nothing"]),
    ],
)
def test_fields_of_a_link_are_split_at_commas(parameters: list[str], fields: list[str]) -> None:
    assert InferenceLink(fields=parameters).fields == fields


def test_a_policy_is_shown_with_every_field_of_its_rules_and_bounds() -> None:
    assert set(RuleBody.model_fields) - {"types"} == set(ShownRule.model_fields)
    bounds = set(PolicyBody.model_fields) - {"effective", "token"}
    assert bounds <= set(ShownVersion.model_fields)


_EARLY, _LATE = "2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z"


@pytest.mark.parametrize(("since", "until"), [(_LATE, _EARLY), (_EARLY, _EARLY)])
def test_rejects_empty_spans(since: str, until: str) -> None:
    with pytest.raises(ValidationError, match="it must be later than") as caught:
        Window.model_validate({"from": since, "to": until})
    assert caught.value.errors()[0]["loc"] == ("to",)
    with pytest.raises(ValidationError, match="it must be later than") as caught:
        InferenceLink.model_validate({"received_from": since, "received_to": until})
    assert caught.value.errors()[0]["loc"] == ("received_to",)


def test_accepts_spans_that_are_not_empty() -> None:
    assert Window.model_validate({"from": _EARLY, "to": _LATE}).since
    assert InferenceLink.model_validate({"received_from": _EARLY, "received_to": _LATE}).query()
    assert Window.model_validate({"from": None, "to": _LATE}).until


@pytest.mark.parametrize(
    "bounds",
    [
        {"gt": 0.9, "lt": 0.2},
        {"gte": 0.9, "lte": 0.2},
        {"gt": 0.5, "lte": 0.5},
        {"gte": 0.5, "lt": 0.5},
        {"eq": 0.5, "lt": 0.5},
        {"eq": 0.5, "gte": 0.6},
    ],
)
def test_rejects_empty_ranges(bounds: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="leaves no score below"):
        ScoreRange.model_validate(bounds)


@pytest.mark.parametrize(
    "bounds", [{"gte": 0.5, "lte": 0.5}, {"gt": 0.4, "eq": 0.5, "lt": 0.6}, {"gt": 0.5}, {}]
)
def test_accepts_ranges_that_are_not_empty(bounds: dict[str, float]) -> None:
    assert ScoreRange.model_validate(bounds).model_dump(exclude_none=True) == bounds
