"""What a certificate says, and to whom: only the holder of the key can match its request."""

from pathlib import Path

import pytest

from inference_store.erasure.certify.documents import Remaining, hash_values
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
        is_of_str = is_of_subject(certificate, [KEY], "person_id", "p-1", type="str")
        assert is_of_str == (type == "str"), type
        assert not is_of_filter(certificate, [KEY], "person_id = 'p-1'"), type


def test_requires_the_signing_key() -> None:
    certificate = make_certificate(filter="a = 1", saved="{}")
    with pytest.raises(KeyNotGiven, match=KEY.id):
        is_of_filter(certificate, [OTHER], "a = 1")
    by_ids = make_certificate(inference_ids=["a"])
    assert not is_of_filter(by_ids, [], "a = 1")


_SUBJECT = {"subject": {"key": "person", "type": None}}


def test_names_events_of_no_registered_model() -> None:
    for asked, is_named in (
        (None, False),
        ({"filter": "a = 1"}, False),
        (_SUBJECT, True),
        ({**_SUBJECT, "unattributed": "named"}, True),
        ({**_SUBJECT, "unattributed": "all"}, False),
    ):
        places = {place["where"]: place for place in Remaining(1, 1, 1).list_locations(asked)}
        named = places.get("dead letters and parked events of no registered model")
        assert (named is not None) == is_named, asked
        assert named is None or named["clear_at"] is None, asked


_EXAMPLES = Path(__file__).parents[3] / "examples"


def test_they_call_nothing_that_debian_12_lacks() -> None:
    """Its cryptography is 38; `private_bytes_raw` and `public_bytes_raw` came with 40."""
    for name in ("verify_certificates.py", "verify_entry.py"):
        assert "_bytes_raw" not in (_EXAMPLES / name).read_text(), name
