"""The smoke test publishes an ordinary event."""

from typing import Any

import orjson

from inference_store.operations.smoke.capture import Capture
from inference_store.operations.smoke.rest import Rest

_NINE = 9


def test_the_event_has_the_nine_fields_and_names_its_blobs() -> None:
    capture = Capture()
    event = orjson.loads(capture.event)
    assert len(event) == _NINE
    keys = {value for name, value in event.items() if name.endswith("_storage_key")}
    assert keys == set(capture.blobs)


def test_the_query_matches_the_metadata_in_the_blobs() -> None:
    capture = Capture()
    condition: Any = capture.question["metadata_filter"]
    (metadata,) = (
        orjson.loads(data) for key, data in capture.blobs.items() if key.endswith("metadata")
    )
    assert [(item["key"], item["value"]) for item in metadata] == [
        (item["key"], item["value"]) for item in condition
    ]


def test_two_runs_never_meet() -> None:
    first, second = Capture(), Capture()
    assert first.inference_id != second.inference_id
    assert not set(first.blobs) & set(second.blobs)


def test_a_token_is_never_shown() -> None:
    assert "sesame" not in repr(Rest("http://127.0.0.1", "sesame"))
