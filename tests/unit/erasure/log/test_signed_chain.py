"""Each step along a chain of signed documents checks its number, its hash, its kind and its key."""

from typing import Any

import pytest

from inference_store.erasure.log.hash_chain import START, Link
from inference_store.erasure.log.key_documents import KIND, RESTART, make_key_document
from inference_store.erasure.log.keys import SigningKey, new_key
from inference_store.erasure.log.signed_chain import BrokenChain, KeyPolicy, SignedChain
from inference_store.erasure.log.signed_document import sign_document

FIRST, SECOND = new_key(), new_key()


def introduce(key: SigningKey, by: SigningKey, after: Link, **more: Any) -> bytes:
    return sign_document(by, KIND, make_key_document(key.public, after=after) | more).data


def certify(by: SigningKey, after: Link, kind: str = "certificate") -> bytes:
    return sign_document(by, kind, after.next_members).data


def begin(**policy: Any) -> SignedChain:
    """Return a chain in which the first key is introduced."""
    chain = SignedChain(kinds={"certificate"}, policy=KeyPolicy(**policy))
    chain.follow(introduce(FIRST, FIRST, START))
    return chain


def test_follows_keys_and_certificates() -> None:
    chain = begin()
    chain.follow(certify(FIRST, chain.end))
    chain.follow(introduce(SECOND, FIRST, chain.end))
    document = chain.follow(certify(SECOND, chain.end))
    assert chain.end == Link(4, document.hash)
    assert chain.keys == (FIRST.public, SECOND.public)
    assert chain.restarts == []


def test_rejects_what_does_not_follow(subtests: pytest.Subtests) -> None:
    for data, reason in (
        (b"{}", "it is no JSON object"),
        (b"[" * 100_000, "it cannot be read"),
        (certify(FIRST, Link(7, b"")), "it says that it is number 8"),
        (certify(FIRST, Link(1, b"x")), "it names another hash of the one before it"),
        (certify(SECOND, Link(1, b"")), "the signature is not of key"),
        (certify(FIRST, Link(1, b""), kind="other"), "it is of no kind that there is: other"),
        (sign_document(FIRST, "certificate", {}).data, "it says that it is number None"),
    ):
        with subtests.test(data=data):
            chain = begin()
            end = chain.end
            with pytest.raises(BrokenChain, match="certificate 2") as broken:
                chain.follow(data)
            assert reason in str(broken.value)
            assert (chain.end, chain.keys) == (end, (FIRST.public,))


def test_rejects_a_first_document_without_a_trusted_key() -> None:
    reason = "the first of a chain introduces its key, and this does not"
    assert SignedChain(kinds={"certificate"}).check(certify(FIRST, START))[1] == [reason]
    chain = SignedChain(kinds=(), policy=KeyPolicy(is_first=lambda key: key == SECOND.public))
    _, reasons = chain.check(introduce(FIRST, FIRST, START))
    assert "which is none of the trusted" in reasons[0]
    assert chain.check(introduce(SECOND, SECOND, START))[1] == []


def test_a_policy_decides_about_a_restart() -> None:
    chain = begin(
        is_restart=lambda key, document: RESTART in document.document and key == SECOND.public
    )
    restart = introduce(SECOND, SECOND, chain.end, **{RESTART: {"reason": "lost"}})
    document = chain.follow(restart)
    assert chain.keys == (FIRST.public, SECOND.public)
    assert chain.restarts == [document]
    _, reasons = begin(is_restart=lambda *_: False).check(restart)
    assert "restarts with key" in reasons[-1]
    # a key that signs itself without saying so is rejected
    chain = begin()
    _, reasons = chain.check(introduce(SECOND, SECOND, chain.end))
    assert "the signature is not of key" in reasons[0]
