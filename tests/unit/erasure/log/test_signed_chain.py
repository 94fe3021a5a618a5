"""Signed documents are read in one form alone, and hash what they may not name."""

import json
from collections.abc import Collection
from typing import Any

import pytest

from inference_store.erasure.hash_chain import START, Link
from inference_store.erasure.log import (
    KIND,
    RESTART,
    NoKey,
    NotSigned,
    SignedChain,
    SignedDocument,
    SigningKey,
    hash_values,
    make_key_document,
    new_key,
    read_document,
    read_keys,
    sign_document,
)


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
    """docs/reference/certificates.md promises it: checking a signature writes no JSON."""
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


FIRST, SECOND = new_key(), new_key()


def introduce(key: SigningKey, by: SigningKey, after: Link, **more: Any) -> SignedDocument:
    return sign_document(by, KIND, make_key_document(key.public, after=after) | more)


def certify(by: SigningKey, after: Link, kind: str = "certificate") -> SignedDocument:
    return sign_document(by, kind, after.next_members)


def follow(chain: SignedChain, document: SignedDocument) -> SignedDocument:
    assert chain.check(document) == []
    chain.advance(document)
    return document


def begin(trusted: Collection[str] | None = ()) -> SignedChain:
    """Return a chain in which the first key is introduced."""
    chain = SignedChain(trusted)
    follow(chain, introduce(FIRST, FIRST, START))
    return chain


def test_follows_keys_and_certificates() -> None:
    chain = begin()
    follow(chain, certify(FIRST, chain.end))
    follow(chain, introduce(SECOND, FIRST, chain.end))
    document = follow(chain, certify(SECOND, chain.end))
    assert chain.end == Link(4, document.hash)
    assert chain.keys == (FIRST.public, SECOND.public)
    assert chain.restarts == []


def test_rejects_what_does_not_follow(subtests: pytest.Subtests) -> None:
    for document, reason in (
        (certify(FIRST, Link(7, b"")), "it says that it is number 8"),
        (certify(FIRST, Link(1, b"x")), "it names another hash of the one before it"),
        (certify(SECOND, Link(1, b"")), "the signature is not of key"),
        (certify(FIRST, Link(1, b""), kind="other"), "unknown document kind: other"),
        (sign_document(FIRST, "certificate", {}), "it says that it is number None"),
    ):
        with subtests.test(document=document.text):
            assert reason in "; ".join(begin().check(document))


def test_rejects_a_first_document_without_a_trusted_key() -> None:
    reason = "the first of a chain introduces its key, and this does not"
    assert SignedChain().check(certify(FIRST, START))[-1] == reason
    unreadable = sign_document(FIRST, KIND, {"public_key": 1})
    assert "it cannot be read" in SignedChain().check(unreadable)[0]
    chain = SignedChain([SECOND.id])
    assert "which is none of the trusted" in chain.check(introduce(FIRST, FIRST, START))[0]
    assert chain.check(introduce(SECOND, SECOND, START)) == []


def test_trust_decides_about_a_restart() -> None:
    both: list[Collection[str] | None] = [[FIRST.id, SECOND.id], None]
    for trusted in both:
        chain = begin(trusted)
        restart = introduce(SECOND, SECOND, chain.end, **{RESTART: {"reason": "lost"}})
        follow(chain, restart)
        assert chain.keys == (FIRST.public, SECOND.public)
        assert chain.restarts == [restart]
    neither: list[Collection[str] | None] = [[FIRST.id], ()]
    for trusted in neither:
        chain = begin(trusted)
        restart = introduce(SECOND, SECOND, chain.end, **{RESTART: {"reason": "lost"}})
        assert "restarts with key" in chain.check(restart)[-1]
    # a key that signs itself without saying so is rejected
    chain = begin(None)
    assert "the signature is not of key" in chain.check(introduce(SECOND, SECOND, chain.end))[0]
