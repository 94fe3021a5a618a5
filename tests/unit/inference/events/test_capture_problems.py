"""Problems of a capture that a producer reports become flags; unknown ones are left out."""

from typing import get_args

from inference_store.inference.events import (
    CAPTURE_PROBLEMS,
    SIDES,
    CaptureKind,
    CaptureSide,
    decode,
    flags_of,
    gravest,
)
from tests.builders import BUCKETS, NOW, make_payload, replace_members


def read_flags(problems: object) -> tuple[str, ...]:
    payload = replace_members(make_payload(), capture_problems=problems)
    return decode(payload, record_time=NOW, buckets=BUCKETS).flags


def test_each_reason_is_a_flag() -> None:
    for reason in CAPTURE_PROBLEMS:
        assert read_flags([reason, reason]) == (f"capture_{reason}",)
    assert read_flags([]) == ()


def test_flags_unknown_reasons() -> None:
    for wrong in (["lost"], "request_over_cap", ["request_over_cap", 7], {"a": 1}):
        assert read_flags(wrong) == ("extra_unreadable:capture_problems",)


def test_the_list_is_whole() -> None:
    listed = {f"capture_{side}_{kind}" for side in SIDES for kind in get_args(CaptureKind)}
    of_sides = {flag for side in SIDES for flag in flags_of(side)}
    assert of_sides == {f"capture_{reason}" for reason in CAPTURE_PROBLEMS}
    assert of_sides == listed - {"capture_response_no_input"}
    assert set(SIDES) == set(get_args(CaptureSide))


def test_keeps_the_gravest_reason_of_each_side() -> None:
    problems = gravest(
        [("response", "not_json"), ("request", "unreadable"), ("request", "over_cap")]
    )
    assert problems == ["request_over_cap", "response_not_json"]
