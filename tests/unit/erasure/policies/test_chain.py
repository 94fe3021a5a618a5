"""Which rule decides, and what has expired: the plain reading."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from inference_store.erasure.policies import (
    DEFAULT,
    KEPT,
    Chain,
    Cutoffs,
    Of,
    RetentionPolicy,
    chain_of,
)
from inference_store.erasure.policies.durations import parse_duration
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.facts import Facts
from inference_store.query.filters.known import Known
from inference_store.query.filters.saved import save

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MODEL, PROJECT = Of("model", "m"), Of("project", "p")


def rule(filter: str | None, keep: str, **more: Any) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), Known()).text
    return {"keep_input": keep, "keep_inference": keep, "saved": saved, **more}


def chain(*policies: tuple[Of, list[dict[str, Any]], dict[str, Any]]) -> Chain:
    return chain_of(
        [
            (of, 1, RetentionPolicy.model_validate({"rules": rules, **more}))
            for of, rules, more in policies
        ]
    )


def scored(score: float | None) -> Facts:
    return Facts({} if score is None else {"top_score": (score,)})


def days(number: float) -> datetime:
    return NOW - timedelta(days=number)


LOW = rule("top_score < 0.4", "P1D", name="low")
HIGH = rule("top_score > 0.9", "P9D")


@pytest.mark.parametrize(
    ("score", "of", "number"),
    [(0.1, MODEL, 0), (0.95, PROJECT, 0), (0.5, DEFAULT, 0), (None, DEFAULT, 0)],
)
def test_the_first_rule_that_is_true_decides(score: float | None, of: Of, number: int) -> None:
    found = chain(
        (MODEL, [LOW], {}), (PROJECT, [HIGH], {}), (DEFAULT, [rule(None, "P30D")], {})
    ).deciding(scored(score))
    assert found is not None
    assert (found.of, found.number) == (of, number)


def test_what_no_rule_is_of_is_kept() -> None:
    found = chain((MODEL, [LOW], {}))
    assert found.deciding(scored(None)) is None
    assert found.decide(scored(0.5), NOW) == KEPT
    assert found.ends(NOW) is None


def test_a_rule_of_everything_hides_what_is_wider() -> None:
    found = chain((MODEL, [rule(None, "P30D")], {}), (DEFAULT, [LOW], {}))
    assert len(found.rules) == 1
    assert found.certain(NOW) == found.decide(scored(0.1), NOW) == Cutoffs(*[days(30)] * 3)


def test_what_has_expired_whichever_rule_decides() -> None:
    found = chain((MODEL, [LOW], {}), (DEFAULT, [rule(None, "P30D", keep_input="P2D")], {}))
    assert found.ends(NOW) == days(30)
    assert found.certain(NOW) == Cutoffs(inference=days(30))
    assert found.latest(NOW) == days(1)
    kept = chain((MODEL, [LOW], {}), (DEFAULT, [rule(None, "forever", keep_input="P2D")], {}))
    assert kept.ends(NOW) is None


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
    ages = rule(None, "P10D", keep_input="P1D", keep_response="P3D")
    assert chain((MODEL, [ages], {})).decide(Facts(), NOW).expired(days(age)) == gone


def test_the_longest_minimum_age_binds_rules_and_limits() -> None:
    found = chain(
        (MODEL, [LOW], {"minimum_age": "P3D", "max_inferences": 5}),
        (PROJECT, [], {"minimum_age": "P7D", "max_inferences": 9, "max_bytes": 100}),
        (DEFAULT, [rule(None, "P30D")], {"minimum_age": "P5D"}),
    )
    assert found.decide(scored(0.1), NOW) == Cutoffs(*[days(7)] * 3)
    assert found.decide(scored(0.5), NOW) == Cutoffs(*[days(30)] * 3)
    assert [(each.of, each.name, each.most) for each in found.limits] == [
        (MODEL, "max_inferences", 5),
        (PROJECT, "max_bytes", 100),
    ]
    assert [each.cutoff(NOW) for each in found.limits] == [days(7), days(7)]


def test_a_policy_that_undercuts_goes_against_it_with_its_own_rules_alone() -> None:
    found = chain(
        (MODEL, [LOW], {"undercuts_minimum_age": True}),
        (DEFAULT, [rule(None, "P2D")], {"minimum_age": "P7D"}),
    )
    assert found.decide(scored(0.1), NOW).inference == days(1)
    assert found.decide(scored(0.5), NOW).inference == days(7)


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
