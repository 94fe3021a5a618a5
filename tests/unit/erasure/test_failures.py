"""Answers of object stores become one of our reasons."""

from inference_store.erasure.verify.failure_reasons import FAILURES, count_failure, find_reason
from inference_store.platform.metrics import RETENTION_TROUBLE


def test_a_reason_is_of_the_list() -> None:
    for code, message, reason in (
        ("InvalidRequest", "Object is WORM protected and cannot be overwritten", "object_locked"),
        ("AccessDenied", "Access Denied because object protected by object lock.", "object_locked"),
        ("AccessDenied", "Access Denied.", "access_denied"),
        ("StillThere", "deleted without a fault, and listed still", "still_there"),
        ("TooLarge", "more than 64 MiB", "not_rewritten"),
        ("SlowDown", "Please reduce your request rate.", "other"),
    ):
        assert find_reason(code, message) == reason, code
        assert reason in FAILURES, code


def test_counts_unlisted_reasons_as_other() -> None:
    counter = RETENTION_TROUBLE.labels("other")
    before = counter._value.get()
    count_failure("what nobody thought of", 3)
    assert counter._value.get() == before + 3
