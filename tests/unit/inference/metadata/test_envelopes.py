"""Both envelopes, as JSON or as a string of it, bare or in a proxy's blob."""

import json
from typing import Any

import pytest

from inference_store.inference.metadata import read_metadata

from .samples import entry_flags, item, leaves, presences, read

FRAME = item("frame_number", "int", "987")
FOUND = [("frame_number", "number", 987)]
TWO_SECTIONS = {"standard_metadata": {}, "extended_metadata": [FRAME]}


@pytest.mark.parametrize(
    "document",
    [
        [FRAME],
        TWO_SECTIONS,
        {"extended_metadata": [FRAME]},
        {"extended_metadata": FRAME},
        FRAME,
        json.dumps([FRAME]),
        json.dumps(TWO_SECTIONS),
        {"metadata": [FRAME], "event": {"model_id": "m"}, "request": {"inputs": []}},
        {"metadata": TWO_SECTIONS, "event": {}},
        {"metadata": json.dumps([FRAME]), "event": {"score": 1.5}},
        {"metadata": json.dumps(TWO_SECTIONS), "request": {}},
        {"extended_metadata": json.dumps([FRAME])},
        [[FRAME], TWO_SECTIONS],
    ],
)
def test_every_envelope_says_the_same(document: Any) -> None:
    found = read(document)
    assert leaves(found) == FOUND
    assert found.problem is None
    assert found.entries[0][:4] == ("frame_number", "int", "987", "extended")


@pytest.mark.parametrize("blob", [None, b"", b" \n", b"null", b"[]", b"{}", b'""'])
def test_nothing_is_no_metadata_and_no_problem(blob: bytes | None) -> None:
    found = read_metadata(blob)
    assert (found.entries, found.flags, found.problem) == ((), (), None)


def test_a_proxy_blob_without_metadata_has_none() -> None:
    assert read({"event": {}, "request": {}}).problem is None
    assert read({"metadata": None, "event": {}}).problem is None


def test_standard_metadata_of_a_client_is_accepted_and_flagged() -> None:
    found = read({"standard_metadata": {"site": "north", "count": 3}, "extended_metadata": []})
    assert leaves(found) == [("site", "string", "north"), ("count", "number", 3)]
    assert entry_flags(found)["site"] == ("standard_from_client",)
    assert found.flags == ("standard_from_client",)
    assert {entry.section for entry in found.entries} == {"standard"}


def test_standard_metadata_of_a_proxy_is_not_the_clients() -> None:
    of_client = {"standard_metadata": {"mine": "x"}, "extended_metadata": [FRAME]}
    found = read({"standard_metadata": {"site": "n"}, "metadata": of_client, "event": {}})
    assert entry_flags(found) == {
        "site": (),
        "mine": ("standard_from_client",),
        "frame_number": (),
    }


def test_standard_metadata_as_a_list_has_declared_types() -> None:
    found = read({"standard_metadata": [item("n", "int", "5")]})
    assert leaves(found) == [("n", "number", 5)]
    assert found.entries[0].section == "standard"


def test_standard_values_have_the_type_of_their_json() -> None:
    values = {"s": "1", "i": 1, "f": 1.5, "b": True, "o": {"x": 2}, "n": None}
    found = read({"standard_metadata": values})
    assert leaves(found) == [
        ("s", "string", "1"),
        ("i", "number", 1),
        ("f", "number", 1.5),
        ("b", "bool", True),
        ("o.x", "number", 2),
    ]
    assert presences(found) == {"n": True, "o": False}


def test_of_keys_given_twice_the_last_wins_and_is_flagged() -> None:
    found = read([item("a", "int", "1"), item("b", "int", "2"), item("a", "int", "3")])
    assert leaves(found) == [("a", "number", 3), ("b", "number", 2)]
    assert entry_flags(found) == {"a": ("duplicate_key",), "b": ()}


@pytest.mark.parametrize("name", ['"a"', r'"\u0061"'])
def test_names_given_twice_in_the_standard_section_are_flagged(name: str) -> None:
    found = read_metadata(b'{"standard_metadata": {"a": "1", %s: "2"}}' % name.encode())
    assert leaves(found) == [("a", "string", "2")]
    assert entry_flags(found) == {"a": ("standard_from_client", "duplicate_key")}


def test_the_reserved_alias_is_indexed_under_the_reserved_name() -> None:
    found = read([item("dataset_split", "str", "train")])
    assert leaves(found) == [("dataset_snapshot_split", "string", "train")]
    assert found.entries[0].key == "dataset_split"


@pytest.mark.parametrize("bad", [5, "x", {"type": "int", "value": "1"}, {"key": 7, "value": "1"}])
def test_one_bad_item_does_not_take_the_others_with_it(bad: Any) -> None:
    found = read([bad, FRAME])
    assert leaves(found) == FOUND
    assert found.flags == ("metadata_partly_unreadable",)
    assert "item 0" in (found.problem or "")
    assert entry_flags(found)[""] == ("malformed",)


@pytest.mark.parametrize("document", [5, "text", {"frame_number": 987}, True, [[[[[[1]]]]]]])
def test_what_is_no_envelope_is_said(document: Any) -> None:
    found = read(document)
    assert "metadata_unreadable" in found.flags
    assert found.problem
    assert found.leaves == ()


@pytest.mark.parametrize("section", [5, "x", True])
def test_a_standard_section_of_another_kind_is_said(section: Any) -> None:
    found = read({"standard_metadata": section, "extended_metadata": [FRAME]})
    assert leaves(found) == FOUND
    assert found.flags == ("metadata_partly_unreadable",)


def test_malformed_json_says_what_and_where() -> None:
    found = read_metadata(b'[{"key": "a", "type": "int", "value": "1"')
    assert found.flags == ("metadata_unreadable",)
    assert "line 1, column" in (found.problem or "")


def test_latin_1_costs_one_value_and_not_the_others() -> None:
    blob = json.dumps([item("city", "str", "Orléans"), FRAME], ensure_ascii=False)
    found = read_metadata(blob.encode("latin-1"))
    assert leaves(found) == FOUND
    assert presences(found) == {"city": False}
    assert found.flags == ("metadata_not_utf8",)
    assert "0xe9" in (found.problem or "")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_other_encodings_of_json_are_read(encoding: str) -> None:
    assert leaves(read_metadata(json.dumps([FRAME]).encode(encoding))) == FOUND
