"""What an engine puts into its answer's parameters."""

import json
from typing import Any

from inference_store.store.metadata import from_response, read_metadata

from .samples import entry_flags, item, leaves

FRAME = item("frame_number", "int", "987")


def _response(*parameters: Any, root: Any = None) -> bytes:
    outputs = [{"name": "o", "data": [], "parameters": each} for each in parameters]
    return json.dumps({"outputs": outputs, "parameters": root or {}}).encode()


def test_metadata_copied_into_an_output() -> None:
    for metadata in ([FRAME], json.dumps([FRAME]), {"extended_metadata": [FRAME]}):
        found = read_metadata(from_response(_response({"metadata": metadata})))
        assert leaves(found) == [("frame_number", "number", 987)]
        assert found.problem is None


def test_equal_copies_in_several_outputs_are_one() -> None:
    copy = {"metadata": json.dumps([FRAME])}
    found = read_metadata(from_response(_response(copy, copy)))
    assert entry_flags(found) == {"frame_number": ()}


def test_several_merge_and_the_last_wins() -> None:
    found = read_metadata(
        from_response(
            _response(
                {"metadata": json.dumps([FRAME, item("b", "int", "1")])},
                {"metadata": {"extended_metadata": [item("b", "int", "2")]}},
                root={"metadata": [item("c", "int", "3")]},
            )
        )
    )
    assert sorted(leaves(found)) == [
        ("b", "number", 2),
        ("c", "number", 3),
        ("frame_number", "number", 987),
    ]


def test_no_metadata_in_the_response() -> None:
    for response in (_response({}), b"[]", b"{", b'"metadata"', b'{"outputs": 5, "metadata": 1}'):
        assert from_response(response) is None


def test_other_parameters_become_standard_metadata() -> None:
    response = _response({"action": "predict", "metadata": [FRAME]}, root={"semantic_score": 0.25})
    found = read_metadata(json.dumps([FRAME]).encode(), response=response)
    assert leaves(found) == [
        ("semantic_score", "number", found.leaves[0].value),
        ("action", "string", "predict"),
        ("frame_number", "number", 987),
    ]
    assert str(found.leaves[0].value) == "0.25"
    assert [entry.section for entry in found.entries] == ["standard", "standard", "extended"]
    assert entry_flags(found)["action"] == ("from_response",)


def test_what_the_caller_says_wins_over_the_engine() -> None:
    response = _response({"action": "predict"})
    blob = json.dumps([item("action", "str", "explain")]).encode()
    found = read_metadata(blob, response=response)
    assert leaves(found) == [("action", "string", "explain")]
    assert entry_flags(found) == {"action": ()}
