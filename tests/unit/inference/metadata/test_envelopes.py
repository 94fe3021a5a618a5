"""Both envelopes, as JSON or as a string of it, bare or in a proxy's blob."""

import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.inference.metadata import Metadata, MetadataCaps, read_metadata

from .samples import list_flags, list_leaves, list_presences, make_item, read

FRAME = make_item("frame_number", "int", "987")
EXPECTED_LEAVES = [("frame_number", "number", 987)]
TWO_SECTIONS = {"standard_metadata": {}, "extended_metadata": [FRAME]}


def test_all_envelopes_have_the_same_meaning() -> None:
    for document in (
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
    ):
        metadata = read(document)
        assert list_leaves(metadata) == EXPECTED_LEAVES, document
        assert metadata.problem is None, document
        assert metadata.entries[0][:4] == ("frame_number", "int", "987", "extended"), document


def test_missing_metadata_is_no_problem() -> None:
    for blob in (None, b"", b" \n", b"null", b"[]", b"{}", b'""'):
        metadata = read_metadata(blob)
        assert (metadata.entries, metadata.flags, metadata.problem) == ((), (), None), blob
    assert read({"event": {}, "request": {}}).problem is None
    assert read({"metadata": None, "event": {}}).problem is None


def test_standard_metadata_has_types_and_is_flagged_if_the_client_sent_it() -> None:
    metadata = read({"standard_metadata": {"site": "north", "count": 3}, "extended_metadata": []})
    assert list_leaves(metadata) == [("site", "string", "north"), ("count", "number", 3)]
    assert list_flags(metadata)["site"] == ("standard_from_client",)
    assert metadata.flags == ("standard_from_client",)
    assert {entry.section for entry in metadata.entries} == {"standard"}
    of_client = {"standard_metadata": {"mine": "x"}, "extended_metadata": [FRAME]}
    metadata = read({"standard_metadata": {"site": "n"}, "metadata": of_client, "event": {}})
    assert list_flags(metadata) == {
        "site": (),
        "mine": ("standard_from_client",),
        "frame_number": (),
    }
    metadata = read({"standard_metadata": [make_item("n", "int", "5")]})
    assert list_leaves(metadata) == [("n", "number", 5)]
    assert metadata.entries[0].section == "standard"
    values = {"s": "1", "i": 1, "f": 1.5, "b": True, "o": {"x": 2}, "n": None}
    metadata = read({"standard_metadata": values})
    assert list_leaves(metadata) == [
        ("s", "string", "1"),
        ("i", "number", 1),
        ("f", "number", 1.5),
        ("b", "bool", True),
        ("o.x", "number", 2),
    ]
    assert list_presences(metadata) == {"n": True, "o": False}


def test_every_value_of_a_key_given_twice_is_indexed_but_of_a_coordinate() -> None:
    metadata = read(
        [make_item("a", "int", "1"), make_item("b", "int", "2"), make_item("a", "int", "3")]
    )
    assert list_leaves(metadata) == [("a", "number", 1), ("b", "number", 2), ("a", "number", 3)]
    assert [entry.flags for entry in metadata.entries] == [(), (), ("duplicate_key",)]
    assert [entry.value for entry in metadata.entries] == ["1", "2", "3"]
    assert metadata.several == ("a",)
    equal = read([make_item("a", "int", "1"), make_item("a", "float", "1.0")])
    assert list_leaves(equal) == [("a", "number", 1)]
    assert (len(equal.entries), equal.several) == (2, ())
    items = [make_item("latitude", "float", value) for value in ("1", "2")]
    metadata = read(items)
    assert list_leaves(metadata) == [("latitude", "number", 2)]
    assert {entry.value for entry in metadata.entries} == {"1", "2"}


@pytest.mark.parametrize("name", ['"a"', r'"\u0061"'])
def test_names_given_twice_in_the_standard_section_are_indexed(name: str) -> None:
    metadata = read_metadata(b'{"standard_metadata": {"a": "1", %s: "2"}}' % name.encode())
    assert list_leaves(metadata) == [("a", "string", "1"), ("a", "string", "2")]
    assert [entry.flags for entry in metadata.entries] == [
        ("standard_from_client",),
        ("standard_from_client", "duplicate_key"),
    ]


_ITEMS = st.lists(
    st.builds(
        make_item,
        st.sampled_from(["a", "a.b", "a.b.c", "dataset_split", "dataset_snapshot_split"]),
        st.sampled_from(["string", "int", "json", "bool"]),
        st.sampled_from(["1", "2", "x", "true", '{"b": 1}', '{"b": {"c": "1"}, "b.c": [3, null]}'])
        | st.just(None),
    ),
    max_size=6,
)


def list_names(metadata: Metadata) -> set[str]:
    return {leaf.name for leaf in metadata.leaves} | set(list_presences(metadata))


@given(_ITEMS)
def test_an_item_is_indexed_as_if_it_were_alone(items: list[Any]) -> None:
    """Also if its key comes again, or is spelt like a path into another one."""
    metadata, alone = read(items), [read([item]) for item in items]
    leaves = list_leaves(metadata)
    assert set(leaves) == {leaf for one in alone for leaf in list_leaves(one)}
    assert len(set(leaves)) == len(leaves)
    assert [entry.value for entry in metadata.entries] == [item["value"] for item in items]
    assert list_names(metadata) == {name for one in alone for name in list_names(one)}
    times = Counter((leaf.name, leaf.family) for leaf in metadata.leaves)
    assert set(metadata.several) == {
        name for (name, _), number in times.items() if number > 1 and "[]" not in name
    }


def test_a_bad_item_or_alias_does_not_affect_the_others() -> None:
    for bad in (5, "x", {"type": "int", "value": "1"}, {"key": 7, "value": "1"}):
        metadata = read([bad, FRAME])
        assert list_leaves(metadata) == EXPECTED_LEAVES, bad
        assert metadata.flags == ("metadata_partly_unreadable",), bad
        assert "item 0" in (metadata.problem or ""), bad
        assert list_flags(metadata)[""] == ("malformed",), bad
    metadata = read([make_item("dataset_split", "str", "train")])
    assert list_leaves(metadata) == [("dataset_snapshot_split", "string", "train")]
    assert metadata.entries[0].key == "dataset_split"


def test_reports_what_is_no_envelope_and_where_json_is_malformed() -> None:
    for document in (5, "text", {"frame_number": 987}, True, [[[[[[1]]]]]]):
        metadata = read(document)
        assert "metadata_unreadable" in metadata.flags, document
        assert metadata.problem, document
        assert metadata.leaves == (), document
    for section in (5, "x", True):
        metadata = read({"standard_metadata": section, "extended_metadata": [FRAME]})
        assert list_leaves(metadata) == EXPECTED_LEAVES, section
        assert metadata.flags == ("metadata_partly_unreadable",), section
    metadata = read_metadata(b'[{"key": "a", "type": "int", "value": "1"')
    assert metadata.flags == ("metadata_unreadable",)
    assert "line 1, column" in (metadata.problem or "")


def test_other_encodings_are_read_and_latin_1_costs_one_value() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        assert list_leaves(read_metadata(json.dumps([FRAME]).encode(encoding))) == EXPECTED_LEAVES
    blob = json.dumps([make_item("city", "str", "Orléans"), FRAME], ensure_ascii=False)
    metadata = read_metadata(blob.encode("latin-1"))
    assert list_leaves(metadata) == EXPECTED_LEAVES
    assert list_presences(metadata) == {"city": False}
    assert metadata.flags == ("metadata_not_utf8",)
    assert "0xe9" in (metadata.problem or "")


# The examples that the reference system publishes: with their quoting repaired, and unchanged.

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


def test_what_was_published_is_read_once_its_quotes_are_repaired() -> None:
    for blob in (REPAIRED, json.dumps(REPAIRED), json.dumps({"metadata": REPAIRED, "event": {}})):
        metadata = read_metadata(blob.encode())
        assert list_leaves(metadata) == EXPECTED
        assert list_presences(metadata) == {"camera_position": False}
        assert (metadata.flags, metadata.problem) == ((), None)
    document = {
        "standard_metadata": {},
        "extended_metadata": [
            make_item("a", "int", "1"),
            make_item("score_threshold", "float", "0.55"),
        ],
    }
    leaves = [("a", "number", Decimal(1)), ("score_threshold", "number", Decimal("0.55"))]
    assert list_leaves(read(document)) == leaves
    assert list_leaves(read(json.dumps(document))) == leaves


def test_what_was_published_with_broken_quotes_is_kept_and_flagged() -> None:
    metadata = read_metadata(AS_PUBLISHED.encode())
    assert metadata.flags == ("metadata_unreadable",)
    assert "line 8, column" in (metadata.problem or "")
    assert "angle" in (metadata.problem or "")
    blob = '{"action":"predict","metadata": "' + AS_PUBLISHED + '",}'
    metadata = read_metadata(blob.encode())
    assert metadata.flags == ("metadata_unreadable",)
    assert "line 2, column" in (metadata.problem or "")


# Metadata that an engine puts into the parameters of its answer.


def _make_response(*parameters: Any, root: Any = None) -> bytes:
    outputs = [{"name": "o", "data": [], "parameters": fields} for fields in parameters]
    return json.dumps({"outputs": outputs, "parameters": root or {}}).encode()


def test_metadata_copied_into_outputs_is_indexed_once() -> None:
    for sent in ([FRAME], json.dumps([FRAME]), {"extended_metadata": [FRAME]}):
        result = read_metadata(None, response=_make_response({"metadata": sent}))
        assert list_leaves(result) == [("frame_number", "number", 987)]
        assert result.problem is None
    copy = {"metadata": json.dumps([FRAME])}
    metadata = read_metadata(None, response=_make_response(copy, copy))
    assert list_flags(metadata) == {"frame_number": ()}
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
    for response in (
        _make_response({}),
        b"[]",
        b"{",
        b'"metadata"',
        b'{"outputs": 5, "metadata": 1}',
    ):
        assert read_metadata(None, response=response) == Metadata()


def test_other_parameters_become_standard_metadata_or_a_remark() -> None:
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
    for remark in ("v1", 7, {"latency": 3}):
        own = json.dumps([FRAME]).encode()
        result = read_metadata(own, response=_make_response({"metadata": remark}))
        assert (result.flags, result.problem) == ((), None)
        assert list_flags(result) == {"frame_number": (), "metadata": ("from_response",)}


def test_the_caller_wins_over_the_engine() -> None:
    response = _make_response({"action": "predict"})
    blob = json.dumps([make_item("action", "str", "explain")]).encode()
    metadata = read_metadata(blob, response=response)
    assert list_leaves(metadata) == [("action", "string", "explain")]
    assert list_flags(metadata) == {"action": ()}
    own = json.dumps([make_item("dataset_split", "string", "train")]).encode()
    copied = {"metadata": [make_item("dataset_snapshot_split", "string", "test")]}
    metadata = read_metadata(own, response=_make_response(copied))
    assert list_leaves(metadata) == [("dataset_snapshot_split", "string", "train")]
    own = json.dumps([make_item("mine", "int", "1")]).encode()
    many = [make_item(f"k{number}", "int", "1") for number in range(300)]
    metadata = read_metadata(own, response=_make_response({"metadata": many}))
    assert metadata.leaves[0].name == "mine"
    assert "metadata_keys_capped" in metadata.flags


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


def test_reads_the_engines_copy_if_the_blob_is_over_its_cap() -> None:
    blob = json.dumps([make_item("a", "string", "x" * 100)]).encode()
    caps = MetadataCaps(blob_bytes=50)
    metadata = read_metadata(blob, caps=caps, response=_make_response({"metadata": [FRAME]}))
    assert list_leaves(metadata) == [("frame_number", "number", 987)]
    assert metadata.flags == ("metadata_too_large",)
