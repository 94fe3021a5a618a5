"""The names in the OpenAPI document are the names that the api reads."""

import re

import pytest
from pydantic import BaseModel, ValidationError

from inference_store.api.conditions import InferenceLink, InferenceQuery, MetadataCondition
from inference_store.api.fields import ScoreRange, Window
from inference_store.api.inference_models import FIELD_PATTERN, FIELDS, PARTS, FieldSelection
from inference_store.api.policies import PolicyBody, RuleBody, ShownRule, ShownVersion
from inference_store.inference.errors import Invalid
from inference_store.query.properties import OPERATORS

_NAMES = [*FIELDS, *(f"{field}.{part}" for field, parts in PARTS.items() for part in parts)]


def test_a_field_matches_the_pattern_and_no_other_name_does(subtests: pytest.Subtests) -> None:
    for name in (*_NAMES, "metadata.frame_number", "metadata.a.b[]"):
        assert re.search(FIELD_PATTERN, name), name
        assert FieldSelection.of([name], []), name
    for name in ("frame_number", "predictions.nothing", "urls.", "uid.x", ""):
        with subtests.test(name):
            assert not re.search(FIELD_PATTERN, name)
            with pytest.raises(Invalid):
                FieldSelection.of([name], [])


def test_operators_are_an_enum_and_a_sort_matches_its_pattern() -> None:
    schema = MetadataCondition.model_json_schema()["properties"]["operator"]
    assert schema["enum"] == list(OPERATORS)
    schema = InferenceQuery.model_json_schema()["properties"]["sort"]
    for sort in ("-received_at", "frame_number", "metadata.width", "tag:string"):
        assert re.search(schema["pattern"], sort), sort
        assert InferenceQuery(sort=sort).sort == sort, sort


def test_fields_of_a_link_are_split_at_commas() -> None:
    for parameters, fields in (
        (["inference_id,uid"], ["inference_id", "uid"]),
        (["inference_id, metadata.a", "top_label"], ["inference_id", "metadata.a", "top_label"]),
        (["metadata.a,metadata.b,uid"], ["metadata.a", "metadata.b", "uid"]),
        (["metadata.a,b"], ["metadata.a,b"]),
        (["metadata.a,b, uid"], ["metadata.a,b", "uid"]),
        (["uid,nothing"], ["uid", "nothing"]),
    ):
        assert InferenceLink(fields=parameters).fields == fields, parameters


def test_a_policy_is_shown_with_every_field_of_its_rules_and_bounds() -> None:
    assert set(RuleBody.model_fields) - {"types"} == set(ShownRule.model_fields)
    bounds = set(PolicyBody.model_fields) - {"level", "id", "effective", "token"}
    assert bounds <= set(ShownVersion.model_fields)


_EARLY, _LATE = "2026-11-01T00:00:00Z", "2026-11-01T00:00:01Z"


def test_rejects_empty_spans(subtests: pytest.Subtests) -> None:
    kinds: list[tuple[type[BaseModel], str]] = [(Window, ""), (InferenceLink, "received_")]
    for since, until in ((_LATE, _EARLY), (_EARLY, _EARLY)):
        for kind, prefix in kinds:
            with (
                subtests.test(kind.__name__, since=since),
                pytest.raises(ValidationError, match="it must be later than") as caught,
            ):
                kind.model_validate({f"{prefix}from": since, f"{prefix}to": until})
            assert caught.value.errors()[0]["loc"] == (f"{prefix}to",)
    assert Window.model_validate({"from": _EARLY, "to": _LATE}).since
    assert InferenceLink.model_validate({"received_from": _EARLY, "received_to": _LATE}).query()
    assert Window.model_validate({"from": None, "to": _LATE}).until


def test_rejects_empty_ranges(subtests: pytest.Subtests) -> None:
    for bounds in (
        {"gt": 0.9, "lt": 0.2},
        {"gte": 0.9, "lte": 0.2},
        {"gt": 0.5, "lte": 0.5},
        {"gte": 0.5, "lt": 0.5},
        {"eq": 0.5, "lt": 0.5},
        {"eq": 0.5, "gte": 0.6},
    ):
        refused = pytest.raises(ValidationError, match="leaves no score below")
        with subtests.test(bounds=bounds), refused:
            ScoreRange.model_validate(bounds)
    for bounds in ({"gte": 0.5, "lte": 0.5}, {"gt": 0.4, "eq": 0.5, "lt": 0.6}, {"gt": 0.5}, {}):
        assert ScoreRange.model_validate(bounds).model_dump(exclude_none=True) == bounds, bounds
