"""A number has its noun in the right form."""

import pytest

from inference_store_client.plurals import write_count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1_000, "1,000 files")]
)
def test_a_number_and_its_noun(count: int, text: str) -> None:
    assert write_count(count, "file") == text


def test_a_plural_of_its_own() -> None:
    assert [write_count(count, "class", "classes") for count in (1, 2)] == ["1 class", "2 classes"]
