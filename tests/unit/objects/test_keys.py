import pytest

from inference_store.objects.keys import is_addressable, is_plain


@pytest.mark.parametrize("key", ["a", "a/b c", "per%20cent", "ü/😀", "q?x#y", "a;b,c|d"])
def test_a_plain_key_may_be_carried_by_any_client(key: str) -> None:
    assert is_plain(key)
    assert is_addressable(key)


@pytest.mark.parametrize("key", ["/a", "a/", "a//b", "a\tb", "a\nb", "\x7f", "\ufffe"])
def test_an_odd_key_needs_the_client_that_spells_it_exactly(key: str) -> None:
    assert not is_plain(key)
    assert is_addressable(key)


@pytest.mark.parametrize("key", [".", "a/../b", "./a", "a/."])
def test_dots_are_resolved_away_on_the_road(key: str) -> None:
    assert not is_plain(key)
    assert not is_addressable(key)
