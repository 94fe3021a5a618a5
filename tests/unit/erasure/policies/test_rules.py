from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.erasure.policies import RetentionPolicy


def make_policy(input: str = "P30D", inference: str = "forever", **more: Any) -> RetentionPolicy:
    rule = {"keep_input": input, "keep_inference": inference}
    return RetentionPolicy.model_validate({"rules": [rule | more]})


def test_a_part_may_not_be_kept_longer_than_its_inference_on_any_day(
    subtests: pytest.Subtests,
) -> None:
    allowed = "P1M=P1M P28D=P1M P1M=P31D P12M=P1Y P1Y=P366D"
    refused = "forever=P1Y P2D=P1D P30D=P1M P1M=P30D P366D=P1Y"
    for part in ("keep_input", "keep_response"):
        for part_age, age in (pair.split("=") for pair in allowed.split()):
            make_policy(**{"input": "PT1S", "inference": age, part: part_age})
        for part_age, age in (pair.split("=") for pair in refused.split()):
            sentence = rf"{part} \({part_age}\) must not be longer"
            with subtests.test(sentence), pytest.raises(ValidationError, match=sentence):
                make_policy(**{"input": "PT1S", "inference": age, part: part_age})


def test_a_part_is_kept_as_long_as_its_inference() -> None:
    assert make_policy("P1D", "P2D").rules[0].response == "P2D"
    assert make_policy("P1D", "P9D", keep_response="P3D").rules[0].response == "P3D"
    rule = {"keep_inference": "P2D"}
    (parsed,) = RetentionPolicy.model_validate({"rules": [rule]}).rules
    assert (parsed.keep_input, parsed.input) == (None, "P2D")


def _make_rules(*rules: dict[str, Any], **more: Any) -> RetentionPolicy:
    ages = {"keep_input": "P1D", "keep_inference": "P1D"}
    return RetentionPolicy.model_validate({"rules": [ages | rule for rule in rules], **more})


def test_a_rule_can_apply_and_has_a_name_of_its_own() -> None:
    _make_rules({"saved": "{}"}, {})
    with pytest.raises(ValidationError, match=r"rules\[0\] has no filter"):
        _make_rules({}, {"saved": "{}"})
    with pytest.raises(ValidationError, match="two rules are named 'a'"):
        _make_rules({"saved": "{}", "name": "a"}, {"name": "a"})


def test_a_policy_has_a_rule_or_a_bound() -> None:
    for fields in ({"max_inferences": 1}, {"max_bytes": 1}, {"minimum_age": "P1D"}):
        _make_rules(**fields)
    with pytest.raises(ValidationError, match="a rule, a limit or a minimum age"):
        _make_rules()
    with pytest.raises(ValidationError, match="`forever` is for rules"):
        _make_rules(minimum_age="forever")


def test_a_limit_is_a_whole_number(subtests: pytest.Subtests) -> None:
    for most in (0, -1, 1.5, True, "3"):
        with subtests.test(most=most), pytest.raises(ValidationError):
            _make_rules(max_inferences=most)


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        make_policy(days=3)
    with pytest.raises(ValidationError, match="Extra inputs"):
        RetentionPolicy.model_validate({"rules": make_policy().model_dump()["rules"], "days": 3})


def test_a_name_can_be_stored() -> None:
    assert make_policy(name="two days").rules[0].name == "two days"
    for name in ("a\0b", "\ud800"):
        with pytest.raises(ValidationError, match=r"surrogate|raw data as a unicode"):
            make_policy(name=name)
