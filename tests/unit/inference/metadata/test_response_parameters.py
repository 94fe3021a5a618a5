"""What an engine puts into its answer's parameters."""

import json
from typing import Any

import pytest

from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata

from .samples import entry_flags, item, leaves

FRAME = item("frame_number", "int", "987")


def _response(*parameters: Any, root: Any = None) -> bytes:
    outputs = [{"name": "o", "data": [], "parameters": each} for each in parameters]
    return json.dumps({"outputs": outputs, "parameters": root or {}}).encode()


def test_metadata_copied_into_an_output() -> None:
    for metadata in ([FRAME], json.dumps([FRAME]), {"extended_metadata": [FRAME]}):
        found = read_metadata(None, response=_response({"metadata": metadata}))
        assert leaves(found) == [("frame_number", "number", 987)]
        assert found.problem is None


def test_equal_copies_in_several_outputs_are_one() -> None:
    copy = {"metadata": json.dumps([FRAME])}
    found = read_metadata(None, response=_response(copy, copy))
    assert entry_flags(found) == {"frame_number": ()}


def test_several_merge_and_the_last_wins() -> None:
    found = read_metadata(
        None,
        response=_response(
            {"metadata": json.dumps([FRAME, item("b", "int", "1")])},
            {"metadata": {"extended_metadata": [item("b", "int", "2")]}},
            root={"metadata": [item("c", "int", "3")]},
        ),
    )
    assert sorted(leaves(found)) == [
        ("b", "number", 2),
        ("c", "number", 3),
        ("frame_number", "number", 987),
    ]


def test_no_metadata_in_the_response() -> None:
    for response in (_response({}), b"[]", b"{", b'"metadata"', b'{"outputs": 5, "metadata": 1}'):
        assert read_metadata(None, response=response) == Metadata()


def test_other_parameters_become_standard_metadata() -> None:
    response = _response({"action": "predict", "metadata": [FRAME]}, root={"semantic_score": 0.25})
    found = read_metadata(json.dumps([FRAME]).encode(), response=response)
    assert leaves(found) == [
        ("frame_number", "number", 987),
        ("semantic_score", "number", found.leaves[1].value),
        ("action", "string", "predict"),
    ]
    assert str(found.leaves[1].value) == "0.25"
    assert [entry.section for entry in found.entries] == ["extended", "standard", "standard"]
    assert entry_flags(found)["action"] == ("from_response",)


def test_what_the_caller_says_wins_over_the_engine() -> None:
    response = _response({"action": "predict"})
    blob = json.dumps([item("action", "str", "explain")]).encode()
    found = read_metadata(blob, response=response)
    assert leaves(found) == [("action", "string", "explain")]
    assert entry_flags(found) == {"action": ()}


@pytest.mark.parametrize(
    "blob",
    [
        b"[]",
        b'{"standard_metadata": {}, "metadata": [], "event": {}, "request": {}, "capture": {}}',
        b'{"standard_metadata": {"stream": false}, "metadata": []}',
        json.dumps([item("data_source", "string", "hall")]).encode(),
        json.dumps([FRAME]).encode(),
    ],
)
def test_what_the_engine_copied_counts_beside_a_blob(blob: bytes) -> None:
    """A proxy that is our own always writes a blob, also of a request that it could not read."""
    copy = [FRAME, item("data_source", "string", "yard")]
    found = read_metadata(blob, response=_response({"metadata": json.dumps(copy)}))
    values = {name: value for name, _, value in leaves(found)}
    assert values["frame_number"] == 987
    assert values["data_source"] == ("hall" if b"hall" in blob else "yard")
    assert found.flags == ()
    assert set().union(*entry_flags(found).values()) == set()


def test_the_callers_alias_of_a_key_wins_too() -> None:
    own = json.dumps([item("dataset_split", "string", "train")]).encode()
    copied = {"metadata": [item("dataset_snapshot_split", "string", "test")]}
    found = read_metadata(own, response=_response(copied))
    assert leaves(found) == [("dataset_snapshot_split", "string", "train")]


def test_of_a_blob_over_its_cap_the_engines_copy_is_read() -> None:
    blob = json.dumps([item("a", "string", "x" * 100)]).encode()
    caps = MetadataCaps(blob_bytes=50)
    found = read_metadata(blob, caps=caps, response=_response({"metadata": [FRAME]}))
    assert leaves(found) == [("frame_number", "number", 987)]
    assert found.flags == ("metadata_too_large",)


def test_a_cap_cuts_off_the_engines_keys_before_the_callers() -> None:
    own = json.dumps([item("mine", "int", "1")]).encode()
    many = [item(f"k{number}", "int", "1") for number in range(300)]
    found = read_metadata(own, response=_response({"metadata": many}))
    assert found.leaves[0].name == "mine"
    assert "metadata_keys_capped" in found.flags


def test_what_is_no_metadata_is_a_remark_of_the_engine() -> None:
    for metadata in ("v1", 7, {"latency": 3}):
        own = json.dumps([FRAME]).encode()
        found = read_metadata(own, response=_response({"metadata": metadata}))
        assert (found.flags, found.problem) == ((), None)
        assert entry_flags(found) == {"frame_number": (), "metadata": ("from_response",)}
