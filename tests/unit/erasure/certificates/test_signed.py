"""Signed documents are read in one form alone, and hash what they may not name."""

import json

import pytest

from inference_store.erasure.certificates.documents import without_values
from inference_store.erasure.certificates.keys import NoKey, new_key, read_keys
from inference_store.erasure.certificates.signed import NotSigned, read_signed, signed


def test_what_is_signed_is_read_again() -> None:
    key = new_key()
    one = signed(key, "certificate", {"number": 1, "é": [None, True]})
    again = read_signed(one.text)
    assert again == one
    assert again.is_by(key.public)
    assert not again.is_by(new_key().public)
    assert signed(key, "other", one.document).signature != one.signature


def test_another_spelling_of_the_same_is_refused() -> None:
    text = signed(new_key(), "certificate", {"number": 1}).text
    for spelled in (json.dumps(json.loads(text), indent=1), text + " ", "[]", "{", ""):
        with pytest.raises(NotSigned):
            read_signed(spelled)


def test_the_signed_bytes_are_those_of_the_file() -> None:
    """As docs/proof.md says: nobody has to write JSON to check a signature."""
    key, odd = new_key(), 'é\x7f"\\/\n\U0001f600,"kind":"'
    one = signed(key, "certificate", {"number": 1, "model_ids": [odd]})
    document = one.text.removeprefix('{"document":').rpartition(',"kind":"')[0].encode()
    assert one.text.isascii()
    assert r"\u00e9\u007f\"\\/\n\ud83d\ude00" in one.text
    assert key.public.has_signed("certificate", document, one.signature)


def test_keys_are_read_in_their_order() -> None:
    first, second = new_key(), new_key()
    assert [key.id for key in read_keys(first.pem + second.pem)] == [first.id, second.id]
    assert read_keys(first.pem)[0].keyed_hash("object", b"x") == first.keyed_hash("object", b"x")
    assert first.keyed_hash("object", b"x") != second.keyed_hash("object", b"x")
    for text in ("", "secret", first.pem + first.pem, first.pem.replace("PRIVATE", "PUBLIC")):
        with pytest.raises(NoKey) as refused:
            read_keys(text)
        assert "secret" not in str(refused.value)


def test_no_value_that_was_asked_for_is_named() -> None:
    key, mail = new_key(), "someone@example.org"
    for asked in (
        {"filter": f"mail = '{mail}'", "saved": {"text": mail}},
        {"subject": {"key": "mail", "type": "string", "value": mail}},
        {"inference_ids": [mail]},
    ):
        said = without_values(key, asked)
        assert said
        assert mail not in json.dumps(said)
        assert said == without_values(key, asked)
    assert without_values(key, None) is None
