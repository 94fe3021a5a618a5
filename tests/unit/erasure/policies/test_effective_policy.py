"""Which rule decides, and what has expired: the plain reading."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_store.erasure.policies import (
    DEFAULT,
    KEEP_ALL,
    Cutoffs,
    EffectivePolicy,
    PolicyOwner,
    RetentionPolicy,
    merge_policies,
)
from inference_store.erasure.policies.durations import parse_duration
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.known_keys import KnownKeys
from inference_store.query.filters.saved import save

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MODEL, PROJECT = PolicyOwner("model", "m"), PolicyOwner("project", "p")


def make_rule(filter: str | None, keep: str, **more: Any) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), KnownKeys()).text
    return {"keep_input": keep, "keep_inference": keep, "saved": saved, **more}


def make_policy(
    *policies: tuple[PolicyOwner, list[dict[str, Any]], dict[str, Any]],
) -> EffectivePolicy:
    return merge_policies(
        [
            (of, 1, RetentionPolicy.model_validate({"rules": rules, **more}))
            for of, rules, more in policies
        ]
    )


def make_facts(score: float | None) -> Facts:
    return Facts({} if score is None else {"top_score": (score,)})


def find_days_ago(number: float) -> datetime:
    return NOW - timedelta(days=number)


LOW = make_rule("top_score < 0.4", "P1D", name="low")
HIGH = make_rule("top_score > 0.9", "P9D")


@pytest.mark.parametrize(
    ("score", "of", "number"),
    [(0.1, MODEL, 0), (0.95, PROJECT, 0), (0.5, DEFAULT, 0), (None, DEFAULT, 0)],
)
def test_the_first_rule_that_is_true_decides(
    score: float | None, of: PolicyOwner, number: int
) -> None:
    deciding = make_policy(
        (MODEL, [LOW], {}), (PROJECT, [HIGH], {}), (DEFAULT, [make_rule(None, "P30D")], {})
    ).find_rule(make_facts(score))
    assert deciding is not None
    assert (deciding.of, deciding.number) == (of, number)


def test_keeps_inferences_that_no_rule_applies_to() -> None:
    policy = make_policy((MODEL, [LOW], {}))
    assert policy.find_rule(make_facts(None)) is None
    assert policy.find_cutoffs(make_facts(0.5), NOW) == KEEP_ALL
    assert policy.find_end(NOW) is None


def test_a_rule_of_everything_overrides_wider_policies() -> None:
    policy = make_policy((MODEL, [make_rule(None, "P30D")], {}), (DEFAULT, [LOW], {}))
    assert len(policy.rules) == 1
    assert (
        policy.find_certain_cutoffs(NOW)
        == policy.find_cutoffs(make_facts(0.1), NOW)
        == Cutoffs(*[find_days_ago(30)] * 3)
    )


def test_finds_the_end_that_holds_for_every_rule() -> None:
    policy = make_policy(
        (MODEL, [LOW], {}), (DEFAULT, [make_rule(None, "P30D", keep_input="P2D")], {})
    )
    assert policy.find_end(NOW) == find_days_ago(30)
    assert policy.find_certain_cutoffs(NOW) == Cutoffs(inference=find_days_ago(30))
    assert policy.find_latest(NOW) == find_days_ago(1)
    forever = make_policy(
        (MODEL, [LOW], {}), (DEFAULT, [make_rule(None, "forever", keep_input="P2D")], {})
    )
    assert forever.find_end(NOW) is None


@pytest.mark.parametrize(
    ("age", "gone"),
    [
        (1, ()),
        (1.001, ("input",)),
        (3.001, ("response", "input")),
        (10.001, ("inference",)),
    ],
)
def test_three_ages(age: float, gone: tuple[str, ...]) -> None:
    ages = make_rule(None, "P10D", keep_input="P1D", keep_response="P3D")
    assert (
        make_policy((MODEL, [ages], {})).find_cutoffs(Facts(), NOW).find_expired(find_days_ago(age))
        == gone
    )


def test_the_longest_minimum_age_binds_rules_and_limits() -> None:
    policy = make_policy(
        (MODEL, [LOW], {"minimum_age": "P3D", "max_inferences": 5}),
        (PROJECT, [], {"minimum_age": "P7D", "max_inferences": 9, "max_bytes": 100}),
        (DEFAULT, [make_rule(None, "P30D")], {"minimum_age": "P5D"}),
    )
    assert policy.find_cutoffs(make_facts(0.1), NOW) == Cutoffs(*[find_days_ago(7)] * 3)
    assert policy.find_cutoffs(make_facts(0.5), NOW) == Cutoffs(*[find_days_ago(30)] * 3)
    assert [(limit.of, limit.name, limit.most) for limit in policy.limits] == [
        (MODEL, "max_inferences", 5),
        (PROJECT, "max_bytes", 100),
    ]
    assert [limit.cutoff(NOW) for limit in policy.limits] == [find_days_ago(7), find_days_ago(7)]


def test_a_policy_undercuts_the_minimum_age_with_its_own_rules_only() -> None:
    policy = make_policy(
        (MODEL, [LOW], {"undercuts_minimum_age": True}),
        (DEFAULT, [make_rule(None, "P2D")], {"minimum_age": "P7D"}),
    )
    assert policy.find_cutoffs(make_facts(0.1), NOW).inference == find_days_ago(1)
    assert policy.find_cutoffs(make_facts(0.5), NOW).inference == find_days_ago(7)


@pytest.mark.parametrize("text", ["P1D", "PT1M", "P1M", "P1Y", "P2Y3M4DT5H", "PT0.000001S"])
@pytest.mark.parametrize("day", [28, 29, 30, 31])
def test_after_is_the_first_instant_of_that_age(text: str, day: int) -> None:
    received = datetime(2028, 1, day, 12, tzinfo=UTC)
    duration = parse_duration(text)
    assert duration is not None
    at = duration.after(received)
    assert at is not None
    assert duration.before(at) >= received
    assert duration.before(at - timedelta(microseconds=1)) < received or day > 28
