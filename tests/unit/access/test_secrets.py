"""The text of a key."""

from inference_store.access.secrets import Secret, id_of, new_id, new_secret


def test_a_key_carries_its_id_and_256_random_bits() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    texts = {new_secret("abcdefghjkmn").text for _ in range(1000)}
    assert len({text.removeprefix("isk_abcdefghjkmn_") for text in texts}) == 1000
    for text in texts:
        assert id_of(text) == "abcdefghjkmn"


def test_rejects_malformed_keys() -> None:
    good = new_secret(new_id()).text
    for text in ("", "isk_", good[:-1], good + "x", good.upper(), f" {good}", good + "\n", "a.b.c"):
        assert id_of(text) is None


def test_comparison_and_what_is_printed() -> None:
    secret = new_secret(new_id())
    assert Secret(secret.text).hash == secret.hash
    assert Secret(secret.text + "x").hash != secret.hash
    assert secret.text not in repr(secret)
    assert len(secret.hash) == 32
