"""What the certificate of a subject's erasure says of events that were not searched."""

from inference_store.erasure.certify.documents import Remaining

_SUBJECT = {"subject": {"key": "person", "type": None}}


def test_names_events_of_no_registered_model() -> None:
    for asked, is_named in (
        (None, False),
        ({"filter": "a = 1"}, False),
        (_SUBJECT, True),
        ({**_SUBJECT, "unattributed": "named"}, True),
        ({**_SUBJECT, "unattributed": "all"}, False),
    ):
        places = {place["where"]: place for place in Remaining(1, 1, 1).list_locations(asked)}
        named = places.get("dead letters and parked events of no registered model")
        assert (named is not None) == is_named, asked
        assert named is None or named["clear_at"] is None, asked
