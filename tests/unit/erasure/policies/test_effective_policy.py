"""Which rule decides, and what has expired: the plain reading."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.erasure.policies import (
    DEFAULT,
    EffectivePolicy,
    PolicyOwner,
    RetentionPolicy,
    merge_policies,
)
from inference_store.erasure.policies.effective_policy import KEEP_ALL, Cutoffs, parse_duration
from inference_store.erasure.preview import is_preview_of, make_token
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.certain import save
from inference_store.query.filters.names import KnownKeys

NOW = datetime(2026, 11, 21, tzinfo=UTC)
MODEL, PROJECT = PolicyOwner("model", "m"), PolicyOwner("project", "p")


def make_rule(filter: str | None, keep: str, **more: Any) -> dict[str, Any]:
    saved = None if filter is None else save(parse_text(filter), KnownKeys()).text
    return {"keep_input": keep, "keep_inference": keep, "saved": saved, **more}


def make_policy(*policies: tuple[PolicyOwner, list[Any], dict[str, Any]]) -> EffectivePolicy:
    return merge_policies([
        (of, 1, RetentionPolicy.model_validate({"rules": rules, **more}))
        for of, rules, more in policies
    ])  # fmt: skip


def find_true(score: float | None) -> list[str]:
    """Return the saved filters that are true of the score."""
    low, high = score is not None and score < 0.4, score is not None and score > 0.9
    return [rule["saved"] for rule, truth in ((LOW, low), (HIGH, high)) if truth]


def find_days_ago(number: float) -> datetime:
    return NOW - timedelta(days=number)


LOW = make_rule("top_score < 0.4", "P1D", name="low")
HIGH = make_rule("top_score > 0.9", "P9D")
MONTH = make_rule(None, "P30D")


def test_the_first_rule_that_is_true_decides() -> None:
    policy = make_policy((MODEL, [LOW], {}), (PROJECT, [HIGH], {}), (DEFAULT, [MONTH], {}))
    for score, of in ((0.1, MODEL), (0.95, PROJECT), (0.5, DEFAULT), (None, DEFAULT)):
        deciding = policy.find_rule(find_true(score))
        assert deciding is not None, score
        assert (deciding.of, deciding.number) == (of, 0), score
    policy = make_policy((MODEL, [LOW], {}))
    assert policy.find_rule(find_true(None)) is None
    assert policy.find_cutoffs(find_true(0.5), NOW) == KEEP_ALL
    assert policy.find_end(NOW) is None


def test_a_rule_of_everything_overrides_wider_policies() -> None:
    policy = make_policy((MODEL, [MONTH], {}), (DEFAULT, [LOW], {}))
    assert len(policy.rules) == 1
    cutoffs = Cutoffs(*[find_days_ago(30)] * 3)
    assert policy.find_certain_cutoffs(NOW) == cutoffs
    assert policy.find_cutoffs(find_true(0.1), NOW) == cutoffs


def test_finds_the_end_that_holds_for_every_rule() -> None:
    month = MONTH | {"keep_input": "P2D"}
    policy = make_policy((MODEL, [LOW], {}), (DEFAULT, [month], {}))
    assert policy.find_end(NOW) == find_days_ago(30)
    assert policy.find_certain_cutoffs(NOW) == Cutoffs(inference=find_days_ago(30))
    assert policy.find_latest(NOW) == find_days_ago(1)
    month |= {"keep_inference": "forever"}
    assert make_policy((MODEL, [LOW], {}), (DEFAULT, [month], {})).find_end(NOW) is None


def test_three_ages() -> None:
    ages = make_rule(None, "P10D", keep_input="P1D", keep_response="P3D")
    cutoffs = make_policy((MODEL, [ages], {})).find_cutoffs([], NOW)
    assert cutoffs.find_expired(find_days_ago(1)) == ()
    assert cutoffs.find_expired(find_days_ago(1.001)) == ("input",)
    assert cutoffs.find_expired(find_days_ago(3.001)) == ("response", "input")
    assert cutoffs.find_expired(find_days_ago(10.001)) == ("inference",)


def test_the_longest_minimum_age_binds_rules_and_limits() -> None:
    policy = make_policy(
        (MODEL, [LOW], {"minimum_age": "P3D", "max_inferences": 5}),
        (PROJECT, [], {"minimum_age": "P7D", "max_inferences": 9}),
        (DEFAULT, [MONTH], {"minimum_age": "P5D"}),
    )
    assert policy.find_cutoffs(find_true(0.1), NOW) == Cutoffs(*[find_days_ago(7)] * 3)
    assert policy.find_cutoffs(find_true(0.5), NOW) == Cutoffs(*[find_days_ago(30)] * 3)
    assert policy.limit is not None
    assert (policy.limit.of, policy.limit.most) == (MODEL, 5)
    assert policy.limit.cutoff(NOW) == find_days_ago(7)


def test_a_policy_undercuts_the_minimum_age_with_its_own_rules_only() -> None:
    policy = make_policy(
        (MODEL, [LOW], {"undercuts_minimum_age": True}),
        (DEFAULT, [make_rule(None, "P2D")], {"minimum_age": "P7D"}),
    )
    assert policy.find_cutoffs(find_true(0.1), NOW).inference == find_days_ago(1)
    assert policy.find_cutoffs(find_true(0.5), NOW).inference == find_days_ago(7)


def test_an_age_ends_at_the_first_instant_of_it() -> None:
    for day in (28, 29, 30, 31):
        for text in ("P1D", "PT1M", "P1M", "P1Y", "P2Y3M4DT5H", "PT0.000001S"):
            received = datetime(2028, 1, day, 12, tzinfo=UTC)
            duration = parse_duration(text)
            assert duration is not None, day
            at = duration.find_end(received)
            assert at is not None, day
            assert duration.before(at) >= received, day
            assert duration.before(at - timedelta(microseconds=1)) < received or day > 28, day


def test_an_age_is_an_iso_8601_duration_or_forever(subtests: pytest.Subtests) -> None:
    for text, before in (
        ("PT1H30M0.5S", NOW - timedelta(hours=1, minutes=30, milliseconds=500)),
        ("P1000Y", datetime(2000, 1, 1, tzinfo=UTC)),
        ("P999999999W", datetime(2000, 1, 1, tzinfo=UTC)),
    ):
        duration = parse_duration(text)
        assert duration is not None, text
        assert duration.before(NOW) == before, text
    assert parse_duration("forever") is None
    for text in ("", "P1DT", "P-1D", "1D", "P1.5D", "P1H", "Forever", "P１D"):
        with subtests.test(text), pytest.raises(ValueError, match="ISO 8601"):
            parse_duration(text)


def make_rule_policy(
    input: str = "P30D", inference: str = "forever", **more: Any
) -> RetentionPolicy:
    rule = {"keep_input": input, "keep_inference": inference}
    return RetentionPolicy.model_validate({"rules": [rule | more]})


def test_a_part_may_not_be_kept_longer_on_any_day(subtests: pytest.Subtests) -> None:
    allowed = "P1M=P1M P28D=P1M P1M=P31D P12M=P1Y P1Y=P366D"
    refused = "forever=P1Y P2D=P1D P30D=P1M P1M=P30D P366D=P1Y"
    for part in ("keep_input", "keep_response"):
        for part_age, age in (pair.split("=") for pair in allowed.split()):
            make_rule_policy(**{"input": "PT1S", "inference": age, part: part_age})
        for part_age, age in (pair.split("=") for pair in refused.split()):
            sentence = rf"{part_age} must not be longer"
            with subtests.test(sentence), pytest.raises(ValidationError, match=sentence):
                make_rule_policy(**{"input": "PT1S", "inference": age, part: part_age})


def test_a_part_is_kept_as_long_as_its_inference() -> None:
    assert make_rule_policy("P1D", "P2D").rules[0].response == "P2D"
    assert make_rule_policy("P1D", "P9D", keep_response="P3D").rules[0].response == "P3D"
    rule = {"keep_inference": "P2D"}
    (parsed,) = RetentionPolicy.model_validate({"rules": [rule]}).rules
    assert (parsed.keep_input, parsed.input) == (None, "P2D")


def _make_rules(*rules: dict[str, Any], **more: Any) -> RetentionPolicy:
    ages = {"keep_input": "P1D", "keep_inference": "P1D"}
    return RetentionPolicy.model_validate({"rules": [ages | rule for rule in rules], **more})


def test_a_rule_can_apply_and_has_a_name_of_its_own() -> None:
    _make_rules({"saved": "{}"}, {})
    with pytest.raises(ValidationError, match="without a filter the rule applies to everything"):
        _make_rules({}, {"saved": "{}"})
    with pytest.raises(ValidationError, match="another rule is named 'a' too"):
        _make_rules({"saved": "{}", "name": "a"}, {"name": "a"})


def test_a_limit_is_a_whole_number(subtests: pytest.Subtests) -> None:
    for most in (0, -1, 1.5, True, "3"):
        with subtests.test(most=most), pytest.raises(ValidationError):
            _make_rules(max_inferences=most)


def test_a_token_is_of_one_policy_at_one_revision_for_an_hour() -> None:
    made_at = NOW + timedelta(microseconds=7)
    token = make_token(MODEL, 3, "{}", made_at)
    for seconds, is_valid in ((-1, False), (0, True), (3599, True), (3600, False)):
        now = made_at + timedelta(seconds=seconds)
        assert is_preview_of(token, MODEL, 3, "{}", now) is is_valid, seconds
    for of, revision, requested in ((PROJECT, 3, "{}"), (MODEL, 4, "{}"), (MODEL, 3, "[]")):
        assert not is_preview_of(token, of, revision, requested, made_at)


def test_a_name_can_be_stored() -> None:
    assert make_rule_policy(name="two days").rules[0].name == "two days"
    for name in ("a\0b", "\ud800"):
        with pytest.raises(ValidationError, match=r"surrogate|raw data as a unicode"):
            make_rule_policy(name=name)
