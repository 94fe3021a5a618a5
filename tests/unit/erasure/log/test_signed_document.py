"""Signed documents are read in one form alone, and hash what they may not name."""

import json

import pytest

from inference_store.erasure.certify.documents import hash_values
from inference_store.erasure.log.keys import NoKey, new_key, read_keys
from inference_store.erasure.log.signed_document import NotSigned, read_document, sign_document


def test_a_signed_document_is_read_back() -> None:
    key = new_key()
    signed = sign_document(key, "certificate", {"number": 1, "é": [None, True]})
    again = read_document(signed.text)
    assert again == signed
    assert again.is_by(key.public)
    assert not again.is_by(new_key().public)
    assert sign_document(key, "other", signed.document).signature != signed.signature


def test_another_spelling_of_the_same_is_refused() -> None:
    text = sign_document(new_key(), "certificate", {"number": 1}).text
    for spelled in (json.dumps(json.loads(text), indent=1), text + " ", "[]", "{", ""):
        with pytest.raises(NotSigned):
            read_document(spelled)


def test_the_signed_bytes_are_those_of_the_file() -> None:
    """docs/how-to/proof.md promises it: a signature can be checked without writing JSON."""
    key, odd = new_key(), 'é\x7f"\\/\n\U0001f600,"kind":"'
    signed = sign_document(key, "certificate", {"number": 1, "model_ids": [odd]})
    document = signed.text.removeprefix('{"document":').rpartition(',"kind":"')[0].encode()
    assert signed.text.isascii()
    assert r"\u00e9\u007f\"\\/\n\ud83d\ude00" in signed.text
    assert key.public.has_signed("certificate", document, signed.signature)


def test_keys_are_read_in_their_order() -> None:
    first, second = new_key(), new_key()
    assert [key.id for key in read_keys(first.pem + second.pem)] == [first.id, second.id]
    assert read_keys(first.pem)[0].keyed_hash("object", b"x") == first.keyed_hash("object", b"x")
    assert first.keyed_hash("object", b"x") != second.keyed_hash("object", b"x")
    for text in ("", "secret", first.pem + first.pem, first.pem.replace("PRIVATE", "PUBLIC")):
        with pytest.raises(NoKey) as refused:
            read_keys(text)
        assert "secret" not in str(refused.value)


def test_hashes_the_requested_values() -> None:
    key, mail = new_key(), "someone@example.org"
    for request in (
        {"filter": f"mail = '{mail}'", "saved": {"text": mail}},
        {"subject": {"key": "mail", "type": "string", "value": mail}},
        {"inference_ids": [mail]},
    ):
        hashed = hash_values(key, request)
        assert hashed
        assert mail not in json.dumps(hashed)
        assert hashed == hash_values(key, request)
    assert hash_values(key, None) is None
