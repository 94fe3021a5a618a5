"""The examples that the reference system publishes: with their quoting repaired, and unchanged."""

import json
from decimal import Decimal

from inference_store.inference.metadata import read_metadata

from .samples import list_leaves, list_presences, make_item, read

# As published: the inner quotes are not escaped, and the request has a trailing comma.
AS_PUBLISHED = """[
{"key": "latitude", "type": "float", "value": "-32.1"},
{"key": "longitude", "type": "float", "value": "-43.2"},
{"key": "data_source", "type": "string", "value": "hallway-camera-feed"},
{"key": "organization", "type": "string", "value": "striveworks"},
{"key": "group", "type": "string", "value": "team-remediation"},
{"key": "frame_number", "type": "int", "value": "987"},
{"key": "camera_position", "type": "json", "value": "{"angle": "10.5", "tilt": "1.6"}"}
]"""
REPAIRED = AS_PUBLISHED.replace(
    '"{"angle": "10.5", "tilt": "1.6"}"', json.dumps('{"angle": "10.5", "tilt": "1.6"}')
)
EXPECTED = [
    ("latitude", "number", Decimal("-32.1")),
    ("longitude", "number", Decimal("-43.2")),
    ("data_source", "string", "hallway-camera-feed"),
    ("organization", "string", "striveworks"),
    ("group", "string", "team-remediation"),
    ("frame_number", "number", Decimal(987)),
    ("camera_position.angle", "string", "10.5"),
    ("camera_position.angle", "number", Decimal("10.5")),
    ("camera_position.tilt", "string", "1.6"),
    ("camera_position.tilt", "number", Decimal("1.6")),
]


def test_the_list_repaired() -> None:
    for blob in (REPAIRED, json.dumps(REPAIRED), json.dumps({"metadata": REPAIRED, "event": {}})):
        metadata = read_metadata(blob.encode())
        assert list_leaves(metadata) == EXPECTED
        assert list_presences(metadata) == {"camera_position": False}
        assert (metadata.flags, metadata.problem) == ((), None)


def test_the_list_as_published_is_kept_and_flagged() -> None:
    metadata = read_metadata(AS_PUBLISHED.encode())
    assert metadata.flags == ("metadata_unreadable",)
    assert "line 8, column" in (metadata.problem or "")
    assert "angle" in (metadata.problem or "")


def test_the_parameters_as_published_are_kept_and_flagged() -> None:
    blob = '{"action":"predict","metadata": "' + AS_PUBLISHED + '",}'
    metadata = read_metadata(blob.encode())
    assert metadata.flags == ("metadata_unreadable",)
    assert "line 2, column" in (metadata.problem or "")


def test_two_sections_as_published() -> None:
    document = {
        "standard_metadata": {},
        "extended_metadata": [
            make_item("a", "int", "1"),
            make_item("score_threshold", "float", "0.55"),
        ],
    }
    expected = [("a", "number", Decimal(1)), ("score_threshold", "number", Decimal("0.55"))]
    assert list_leaves(read(document)) == expected
    assert list_leaves(read(json.dumps(document))) == expected
