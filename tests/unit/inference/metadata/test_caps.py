"""Over a cap: kept, not indexed, flagged."""

import json

from inference_store.inference.metadata import read_metadata
from inference_store.inference.metadata.values import MOST_TOO_LONG

from .samples import list_flags, list_leaves, list_presences, make_item, read, read_item


def test_keys_an_inference() -> None:
    metadata = read([make_item(f"k{number}", "int", "1") for number in range(300)])
    assert len(metadata.entries) == 300
    assert len(metadata.leaves) == 256
    assert list_flags(metadata)["k255"] == ()
    assert list_flags(metadata)["k256"] == ("keys_capped",)
    assert metadata.flags == ("metadata_keys_capped",)


def test_characters_a_key() -> None:
    metadata = read([make_item("x" * 256, "int", "1"), make_item("y" * 257, "int", "2")])
    assert list_leaves(metadata) == [("x" * 256, "number", 1)]
    assert list_flags(metadata)["y" * 257] == ("key_too_long",)


def test_keys_that_are_too_long_are_present_by_their_beginning() -> None:
    path = {"z" * 300: {"deeper": 1}, "z" * 301: 2}
    items = [
        make_item("y" * 257, "int", "2"),
        make_item("y" * 300, "int", None),
        make_item("k", "json", path),
    ]
    metadata = read([*items, make_item("y" * 255 + "\0\0", "int", "3")])
    by_name = {presence.name: presence for presence in metadata.presences}
    assert len(by_name) == len(metadata.presences)
    assert by_name["y" * 255 + "…"] == ("y" * 255 + "…", "int", False, ("key_too_long",))
    assert by_name["k." + "z" * 253 + "…"].flags == ("key_too_long",)
    assert set(by_name) == {"k", "y" * 255 + "…", "k." + "z" * 253 + "…"}
    assert list_leaves(metadata) == []


def test_a_few_keys_that_are_too_long_are_present() -> None:
    metadata = read_item("json", {f"{n:03}" + "x" * 300: 1 for n in range(100)})
    assert len(metadata.presences) == 1 + MOST_TOO_LONG


def test_a_key_that_is_spelt_like_the_beginning_is_itself() -> None:
    name = "y" * 255 + "…"
    metadata = read([make_item(name, "json", {}), make_item("y" * 257, "int", "2")])
    assert [presence.name for presence in metadata.presences] == [name]
    assert metadata.presences[0].flags == ()


def test_keys_that_postgres_cannot_hold() -> None:
    metadata = read(
        [make_item("a\0", "int", "1"), make_item("\ud800", "int", "1"), make_item("", "int", "1")]
    )
    assert list_leaves(metadata) == []
    assert list_presences(metadata) == {}
    assert set(list_flags(metadata).values()) == {("key_not_text",)}
    assert len(metadata.entries) == 3


def test_levels() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert list_leaves(read_item("json", nested(8))) == [("k" + ".a" * 8, "number", 1)]
    metadata = read_item("json", nested(9))
    assert list_leaves(metadata) == []
    assert list_presences(metadata)["k" + ".a" * 8] is False
    assert list_flags(metadata) == {"k": ("too_deep",)}
    assert metadata.flags == ("metadata_too_deep",)


def test_a_value_nested_beyond_all_reading() -> None:
    metadata = read_item("json", "[" * 100_000)
    assert list_flags(metadata) == {"k": ("too_deep",)}
    assert list_presences(metadata) == {"k": False}
    assert metadata.entries[0].value == "[" * 100_000


def test_a_blob_nested_beyond_all_reading() -> None:
    metadata = read_metadata(b"[" * 100_000)
    assert metadata.flags == ("metadata_unreadable",)
    assert "deeper than 128" in (metadata.problem or "")


def test_leaves_of_all_json_values_together() -> None:
    items = [make_item("a", "json", list(range(200))), make_item("b", "json", list(range(200)))]
    metadata = read([*items, make_item("c", "int", "5")])
    names = [leaf.name for leaf in metadata.leaves]
    assert (names.count("a[]"), names.count("b[]"), names.count("c")) == (200, 56, 1)
    assert list_flags(metadata) == {"a": (), "b": ("leaves_capped",), "c": ()}
    assert metadata.flags == ("metadata_leaves_capped",)


def test_nulls_and_empties_count_as_leaves() -> None:
    metadata = read_item(
        "json", {f"n{number}": None if number % 2 else [] for number in range(300)}
    )
    assert len(metadata.presences) == 1 + 256
    assert list_flags(metadata) == {"k": ("leaves_capped",)}


def test_a_cap_that_is_just_reached_is_not_flagged() -> None:
    assert list_flags(read_item("json", list(range(256)))) == {"k": ()}
    assert list_flags(read_item("json", list(range(257)))) == {"k": ("leaves_capped",)}


def test_bytes_of_a_blob() -> None:
    blob = json.dumps([make_item("a", "str", "x" * 2_000_000)]).encode()
    metadata = read_metadata(blob)
    assert (metadata.entries, metadata.flags) == ((), ("metadata_too_large",))
    assert "1048576" in (metadata.problem or "")


def test_ten_kilobytes_of_text_are_one_leaf() -> None:
    text = "".join(chr(33 + number * 7919 % 90) for number in range(10_000))
    assert list_leaves(read_item("string", text)) == [("k", "string", text)]


def test_a_large_standard_section_takes_no_long_time() -> None:
    """Looking for each name in the whole text would be quadratic: half a minute."""
    section = {f"k{number}": number for number in range(60_000)}
    metadata = read({"standard_metadata": section})
    assert len(metadata.leaves) == 256
