from inference_store.objects.keys import is_addressable, is_plain


def test_a_plain_key_may_be_carried_by_any_client() -> None:
    for key in ("a", "a/b c", "per%20cent", "ü/😀", "q?x#y", "a;b,c|d"):
        assert is_plain(key), key
        assert is_addressable(key), key


def test_an_odd_key_needs_the_client_that_spells_it_exactly() -> None:
    for key in ("/a", "a/", "a//b", "a\tb", "a\nb", "\x7f", "\ufffe"):
        assert not is_plain(key), key
        assert is_addressable(key), key


def test_dots_are_resolved_away_on_the_road() -> None:
    for key in (".", "a/../b", "./a", "a/."):
        assert not is_plain(key), key
        assert not is_addressable(key), key
