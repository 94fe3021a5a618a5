from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.store.retention.policies import Cutoffs, RetentionPolicy, cutoffs

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def policy(input: str = "P30D", inference: str = "forever", **more: Any) -> RetentionPolicy:
    rule = {"keep_input": input, "keep_inference": inference}
    return RetentionPolicy.model_validate({"rules": [rule | more]})


def test_cutoffs_are_instants() -> None:
    assert cutoffs(policy(), NOW) == Cutoffs(NOW - timedelta(days=30), None)


@pytest.mark.parametrize(
    ("age", "scope"),
    [
        (timedelta(hours=24), None),
        (timedelta(hours=24, microseconds=1), "input"),
        (timedelta(days=2), "input"),
        (timedelta(days=2, microseconds=1), "inference"),
    ],
)
def test_what_has_expired_of_an_inference(age: timedelta, scope: str | None) -> None:
    assert cutoffs(policy("P1D", "P2D"), NOW).expired(NOW - age) == scope


def test_without_a_policy_nothing_expires() -> None:
    assert Cutoffs(None, None).expired(datetime(2000, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("input", "inference"),
    [("P1M", "P1M"), ("P28D", "P1M"), ("P1M", "P31D"), ("P12M", "P1Y"), ("P1Y", "P366D")],
)
def test_an_input_may_be_kept_as_long_as_its_inference(input: str, inference: str) -> None:
    policy(input, inference)


@pytest.mark.parametrize(
    ("input", "inference"),
    [("forever", "P1Y"), ("P2D", "P1D"), ("P30D", "P1M"), ("P1M", "P30D"), ("P366D", "P1Y")],
)
def test_an_input_may_not_be_kept_longer_on_any_day(input: str, inference: str) -> None:
    with pytest.raises(ValidationError, match="keep_input"):
        policy(input, inference)


@pytest.mark.parametrize("rules", [[], [{"keep_input": "P1D", "keep_inference": "P1D"}] * 2])
def test_there_is_exactly_one_rule(rules: list[dict[str, str]]) -> None:
    with pytest.raises(ValidationError, match="exactly one rule"):
        RetentionPolicy.model_validate({"rules": rules})


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        policy(filter="k = 1")
    with pytest.raises(ValidationError, match="Extra inputs"):
        RetentionPolicy.model_validate({"rules": policy().model_dump()["rules"], "days": 3})


def test_a_rule_may_have_a_name() -> None:
    assert policy(name="two days").rules[0].name == "two days"
