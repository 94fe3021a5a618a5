"""Over a cap: kept, not indexed, flagged."""

import json

from inference_store.inference.metadata import MetadataCaps, read_metadata
from inference_store.inference.metadata.leaves import MOST_TOO_LONG

from .samples import entry_flags, item, leaves, one, presences, read


def test_the_defaults() -> None:
    caps = MetadataCaps()
    assert (caps.keys, caps.key_characters, caps.levels, caps.leaves) == (256, 256, 8, 256)
    assert (caps.digits, caps.exponent, caps.blob_bytes) == (1000, 400, 1024 * 1024)


def test_keys_an_inference() -> None:
    found = read([item(f"k{number}", "int", "1") for number in range(300)])
    assert len(found.entries) == 300
    assert len(found.leaves) == 256
    assert entry_flags(found)["k255"] == ()
    assert entry_flags(found)["k256"] == ("keys_capped",)
    assert found.flags == ("metadata_keys_capped",)


def test_characters_a_key() -> None:
    found = read([item("x" * 256, "int", "1"), item("y" * 257, "int", "2")])
    assert leaves(found) == [("x" * 256, "number", 1)]
    assert entry_flags(found)["y" * 257] == ("key_too_long",)


def test_keys_that_are_too_long_are_present_by_their_beginning() -> None:
    path = {"z" * 300: {"deeper": 1}, "z" * 301: 2}
    items = [item("y" * 257, "int", "2"), item("y" * 300, "int", None), item("k", "json", path)]
    found = read([*items, item("y" * 255 + "\0\0", "int", "3")])
    kept = {each.name: each for each in found.presences}
    assert len(kept) == len(found.presences)
    assert kept["y" * 255 + "…"] == ("y" * 255 + "…", "int", False, ("key_too_long",))
    assert kept["k." + "z" * 253 + "…"].flags == ("key_too_long",)
    assert set(kept) == {"k", "y" * 255 + "…", "k." + "z" * 253 + "…"}
    assert leaves(found) == []


def test_a_few_keys_that_are_too_long_are_present() -> None:
    found = one("json", {f"{n:03}" + "x" * 300: 1 for n in range(100)})
    assert len(found.presences) == 1 + MOST_TOO_LONG


def test_a_key_that_is_spelt_like_the_beginning_is_itself() -> None:
    name = "y" * 255 + "…"
    found = read([item(name, "json", {}), item("y" * 257, "int", "2")])
    assert [each.name for each in found.presences] == [name]
    assert found.presences[0].flags == ()


def test_keys_that_postgres_cannot_hold() -> None:
    found = read([item("a\0", "int", "1"), item("\ud800", "int", "1"), item("", "int", "1")])
    assert leaves(found) == []
    assert presences(found) == {}
    assert set(entry_flags(found).values()) == {("key_not_text",)}
    assert len(found.entries) == 3


def test_levels() -> None:
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert leaves(one("json", nested(8))) == [("k" + ".a" * 8, "number", 1)]
    found = one("json", nested(9))
    assert leaves(found) == []
    assert presences(found)["k" + ".a" * 8] is False
    assert entry_flags(found) == {"k": ("too_deep",)}
    assert found.flags == ("metadata_too_deep",)


def test_a_value_nested_beyond_all_reading() -> None:
    found = one("json", "[" * 100_000)
    assert entry_flags(found) == {"k": ("too_deep",)}
    assert presences(found) == {"k": False}
    assert found.entries[0].value == "[" * 100_000


def test_a_blob_nested_beyond_all_reading() -> None:
    found = read_metadata(b"[" * 100_000)
    assert found.flags == ("metadata_unreadable",)
    assert "deeper than 128" in (found.problem or "")


def test_leaves_of_all_json_values_together() -> None:
    items = [item("a", "json", list(range(200))), item("b", "json", list(range(200)))]
    found = read([*items, item("c", "int", "5")])
    names = [leaf.name for leaf in found.leaves]
    assert (names.count("a[]"), names.count("b[]"), names.count("c")) == (200, 56, 1)
    assert entry_flags(found) == {"a": (), "b": ("leaves_capped",), "c": ()}
    assert found.flags == ("metadata_leaves_capped",)


def test_nulls_and_empties_count_as_leaves() -> None:
    found = one("json", {f"n{number}": None if number % 2 else [] for number in range(300)})
    assert len(found.presences) == 1 + 256
    assert entry_flags(found) == {"k": ("leaves_capped",)}


def test_a_cap_that_is_just_reached_is_not_flagged() -> None:
    assert entry_flags(one("json", list(range(256)))) == {"k": ()}
    assert entry_flags(one("json", list(range(257)))) == {"k": ("leaves_capped",)}


def test_bytes_of_a_blob() -> None:
    blob = json.dumps([item("a", "str", "x" * 2_000_000)]).encode()
    found = read_metadata(blob)
    assert (found.entries, found.flags) == ((), ("metadata_too_large",))
    assert "1048576" in (found.problem or "")


def test_ten_kilobytes_of_text_are_one_leaf() -> None:
    text = "".join(chr(33 + number * 7919 % 90) for number in range(10_000))
    assert leaves(one("string", text)) == [("k", "string", text)]


def test_a_large_standard_section_takes_no_long_time() -> None:
    """Looking for each name in the whole text would be quadratic: half a minute."""
    section = {f"k{number}": number for number in range(60_000)}
    found = read({"standard_metadata": section})
    assert len(found.leaves) == 256
