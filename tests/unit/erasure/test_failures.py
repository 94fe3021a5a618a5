"""What object stores say becomes one of our reasons."""

import pytest

from inference_store.erasure.failures import FAILURES, failed, reason_of
from inference_store.platform.metrics import RETENTION_TROUBLE


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        ("InvalidRequest", "Object is WORM protected and cannot be overwritten", "object_locked"),
        ("AccessDenied", "Access Denied because object protected by object lock.", "object_locked"),
        ("AccessDenied", "Access Denied.", "access_denied"),
        ("StillThere", "deleted without a fault, and listed still", "still_there"),
        ("TooLarge", "more than 64 MiB", "not_rewritten"),
        ("SlowDown", "Please reduce your request rate.", "other"),
    ],
)
def test_a_reason_is_of_the_list(code: str, message: str, reason: str) -> None:
    assert reason_of(code, message) == reason
    assert reason in FAILURES


def test_what_is_not_of_the_list_is_counted_as_other() -> None:
    counter = RETENTION_TROUBLE.labels("other")
    before = counter._value.get()
    failed("what nobody thought of", 3)
    assert counter._value.get() == before + 3
