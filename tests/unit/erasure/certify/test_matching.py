"""Only the holder of the key can match a certificate with its request."""

import pytest

from inference_store.erasure.certify.documents import hash_values
from inference_store.erasure.certify.matching import KeyNotGiven, is_of_filter, is_of_subject
from inference_store.erasure.log.keys import new_key
from inference_store.erasure.log.signed_document import SignedDocument, sign_document

KEY, OTHER = new_key(), new_key()


def make_certificate(**request: object) -> SignedDocument:
    return sign_document(KEY, "certificate", {"erasure": {"asked": hash_values(KEY, request)}})


def test_a_filter_as_it_was_written() -> None:
    certificate = make_certificate(filter="mail = 'a@b.org'", saved="{}")
    assert is_of_filter(certificate, [OTHER, KEY], "mail = 'a@b.org'")
    assert not is_of_filter(certificate, [KEY], "mail='a@b.org'")
    assert not is_of_subject(certificate, [KEY], "mail", "a@b.org")


def test_matches_a_subject_of_any_type() -> None:
    for type in (None, "string", "str"):
        certificate = make_certificate(subject={"key": "person_id", "type": type, "value": "p-1"})
        assert is_of_subject(certificate, [KEY], "person_id", "p-1"), type
        assert not is_of_subject(certificate, [KEY], "person_id", "p-2"), type
        assert not is_of_subject(certificate, [KEY], "person", "p-1"), type
        assert is_of_subject(certificate, [KEY], "person_id", "p-1", type="str") == (
            type == "str"
        ), type
        assert not is_of_filter(certificate, [KEY], "person_id = 'p-1'"), type


def test_requires_the_signing_key() -> None:
    certificate = make_certificate(filter="a = 1", saved="{}")
    with pytest.raises(KeyNotGiven, match=KEY.id):
        is_of_filter(certificate, [OTHER], "a = 1")
    by_ids = make_certificate(inference_ids=["a"])
    assert not is_of_filter(by_ids, [], "a = 1")
