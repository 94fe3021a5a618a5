"""What the smoke test publishes is an event like any other."""

from typing import Any

import orjson

from inference_store.operations.smoke.capture import Capture
from inference_store.operations.smoke.rest import Rest

_NINE = 9


def test_the_event_has_the_nine_fields_and_names_its_blobs() -> None:
    capture = Capture()
    event = orjson.loads(capture.event)
    assert len(event) == _NINE
    named = {value for name, value in event.items() if name.endswith("_storage_key")}
    assert named == set(capture.blobs)


def test_the_question_asks_for_what_is_in_the_blobs() -> None:
    capture = Capture()
    condition: Any = capture.question["metadata_filter"]
    (metadata,) = (
        orjson.loads(data) for key, data in capture.blobs.items() if key.endswith("metadata")
    )
    assert [(one["key"], one["value"]) for one in metadata] == [
        (one["key"], one["value"]) for one in condition
    ]


def test_two_runs_never_meet() -> None:
    one, other = Capture(), Capture()
    assert one.inference_id != other.inference_id
    assert not set(one.blobs) & set(other.blobs)


def test_a_token_is_never_shown() -> None:
    assert "sesame" not in repr(Rest("http://127.0.0.1", "sesame"))
