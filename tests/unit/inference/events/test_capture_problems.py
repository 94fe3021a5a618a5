"""What a producer says is wrong with a capture becomes flags; what nobody knows is left out."""

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
from tests.builders import BUCKETS, NOW, altered, make_payload


def flags(problems: object) -> tuple[str, ...]:
    payload = altered(make_payload(), capture_problems=problems)
    return decode(payload, record_time=NOW, buckets=BUCKETS).flags


def test_each_reason_is_a_flag() -> None:
    for reason in CAPTURE_PROBLEMS:
        assert flags([reason, reason]) == (f"capture_{reason}",)
    assert flags([]) == ()


def test_what_is_no_reason_is_left_out_and_flagged() -> None:
    for wrong in (["lost"], "request_over_cap", ["request_over_cap", 7], {"a": 1}):
        assert flags(wrong) == ("extra_unreadable:capture_problems",)


def test_the_list_is_whole() -> None:
    found = {f"capture_{side}_{kind}" for side in SIDES for kind in get_args(CaptureKind)}
    named = {flag for side in SIDES for flag in flags_of(side)}
    assert named == {f"capture_{reason}" for reason in CAPTURE_PROBLEMS}
    assert named == found - {"capture_response_no_input"}
    assert set(SIDES) == set(get_args(CaptureSide))


def test_of_each_side_the_gravest_is_told() -> None:
    found = gravest([("response", "not_json"), ("request", "unreadable"), ("request", "over_cap")])
    assert found == ["request_over_cap", "response_not_json"]
