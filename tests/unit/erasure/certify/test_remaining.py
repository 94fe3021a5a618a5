"""What the certificate of a subject's erasure says of events that were not searched."""

from typing import Any

import pytest

from inference_store.erasure.certify.documents import Remaining

_SUBJECT = {"subject": {"key": "person", "type": None}}


@pytest.mark.parametrize(
    ("asked", "is_named"),
    [
        (None, False),
        ({"filter": "a = 1"}, False),
        (_SUBJECT, True),
        ({**_SUBJECT, "unattributed": "named"}, True),
        ({**_SUBJECT, "unattributed": "all"}, False),
    ],
)
def test_names_events_of_no_registered_model(asked: dict[str, Any] | None, is_named: bool) -> None:
    places = {place["where"]: place for place in Remaining(1, 1, 1).list_locations(asked)}
    named = places.get("dead letters and parked events of no registered model")
    assert (named is not None) == is_named
    assert named is None or named["clear_at"] is None
