"""Metadata that an engine puts into the parameters of its answer."""

import json
from typing import Any

from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata

from .samples import list_flags, list_leaves, make_item

FRAME = make_item("frame_number", "int", "987")


def _make_response(*parameters: Any, root: Any = None) -> bytes:
    outputs = [{"name": "o", "data": [], "parameters": fields} for fields in parameters]
    return json.dumps({"outputs": outputs, "parameters": root or {}}).encode()


def test_metadata_copied_into_an_output() -> None:
    for metadata in ([FRAME], json.dumps([FRAME]), {"extended_metadata": [FRAME]}):
        result = read_metadata(None, response=_make_response({"metadata": metadata}))
        assert list_leaves(result) == [("frame_number", "number", 987)]
        assert result.problem is None


def test_equal_copies_in_several_outputs_are_one() -> None:
    copy = {"metadata": json.dumps([FRAME])}
    metadata = read_metadata(None, response=_make_response(copy, copy))
    assert list_flags(metadata) == {"frame_number": ()}


def test_copies_that_differ_are_all_indexed() -> None:
    metadata = read_metadata(
        None,
        response=_make_response(
            {"metadata": json.dumps([FRAME, make_item("b", "int", "1")])},
            {"metadata": {"extended_metadata": [make_item("b", "int", "2")]}},
            root={"metadata": [make_item("c", "int", "3")]},
        ),
    )
    assert sorted(list_leaves(metadata)) == [
        ("b", "number", 1),
        ("b", "number", 2),
        ("c", "number", 3),
        ("frame_number", "number", 987),
    ]


def test_no_metadata_in_the_response() -> None:
    for response in (
        _make_response({}),
        b"[]",
        b"{",
        b'"metadata"',
        b'{"outputs": 5, "metadata": 1}',
    ):
        assert read_metadata(None, response=response) == Metadata()


def test_other_parameters_become_standard_metadata() -> None:
    response = _make_response(
        {"action": "predict", "metadata": [FRAME]}, root={"semantic_score": 0.25}
    )
    metadata = read_metadata(json.dumps([FRAME]).encode(), response=response)
    assert list_leaves(metadata) == [
        ("frame_number", "number", 987),
        ("semantic_score", "number", metadata.leaves[1].value),
        ("action", "string", "predict"),
    ]
    assert str(metadata.leaves[1].value) == "0.25"
    assert [entry.section for entry in metadata.entries] == ["extended", "standard", "standard"]
    assert list_flags(metadata)["action"] == ("from_response",)


def test_the_caller_wins_over_the_engine() -> None:
    response = _make_response({"action": "predict"})
    blob = json.dumps([make_item("action", "str", "explain")]).encode()
    metadata = read_metadata(blob, response=response)
    assert list_leaves(metadata) == [("action", "string", "explain")]
    assert list_flags(metadata) == {"action": ()}


def test_metadata_copied_by_the_engine_counts_beside_a_blob() -> None:
    """A proxy that is our own always writes a blob, also of a request that it could not read."""
    for blob in (
        b"[]",
        b'{"standard_metadata": {}, "metadata": [], "event": {}, "request": {}, "capture": {}}',
        b'{"standard_metadata": {"stream": false}, "metadata": []}',
        json.dumps([make_item("data_source", "string", "hall")]).encode(),
        json.dumps([FRAME]).encode(),
    ):
        copy = [FRAME, make_item("data_source", "string", "yard")]
        metadata = read_metadata(blob, response=_make_response({"metadata": json.dumps(copy)}))
        values = {name: value for name, _, value in list_leaves(metadata)}
        assert values["frame_number"] == 987, blob
        assert values["data_source"] == ("hall" if b"hall" in blob else "yard")
        assert metadata.flags == (), blob
        assert set().union(*list_flags(metadata).values()) == set(), blob


def test_the_callers_alias_of_a_key_wins_too() -> None:
    own = json.dumps([make_item("dataset_split", "string", "train")]).encode()
    copied = {"metadata": [make_item("dataset_snapshot_split", "string", "test")]}
    metadata = read_metadata(own, response=_make_response(copied))
    assert list_leaves(metadata) == [("dataset_snapshot_split", "string", "train")]


def test_reads_the_engines_copy_if_the_blob_is_over_its_cap() -> None:
    blob = json.dumps([make_item("a", "string", "x" * 100)]).encode()
    caps = MetadataCaps(blob_bytes=50)
    metadata = read_metadata(blob, caps=caps, response=_make_response({"metadata": [FRAME]}))
    assert list_leaves(metadata) == [("frame_number", "number", 987)]
    assert metadata.flags == ("metadata_too_large",)


def test_a_cap_cuts_off_the_engines_keys_before_the_callers() -> None:
    own = json.dumps([make_item("mine", "int", "1")]).encode()
    many = [make_item(f"k{number}", "int", "1") for number in range(300)]
    metadata = read_metadata(own, response=_make_response({"metadata": many}))
    assert metadata.leaves[0].name == "mine"
    assert "metadata_keys_capped" in metadata.flags


def test_other_text_is_a_remark_of_the_engine() -> None:
    for metadata in ("v1", 7, {"latency": 3}):
        own = json.dumps([FRAME]).encode()
        result = read_metadata(own, response=_make_response({"metadata": metadata}))
        assert (result.flags, result.problem) == ((), None)
        assert list_flags(result) == {"frame_number": (), "metadata": ("from_response",)}
