"""Whoever has the key can tell of what a certificate is; nobody else can."""

import pytest

from inference_store.erasure.certificates.documents import without_values
from inference_store.erasure.certificates.keys import new_key
from inference_store.erasure.certificates.matching import KeyNotGiven, is_of_filter, is_of_subject
from inference_store.erasure.certificates.signed import Signed, signed

KEY, OTHER = new_key(), new_key()


def certificate(**asked: object) -> Signed:
    return signed(KEY, "certificate", {"erasure": {"asked": without_values(KEY, asked)}})


def test_a_filter_as_it_was_written() -> None:
    one = certificate(filter="mail = 'a@b.org'", saved="{}")
    assert is_of_filter(one, [OTHER, KEY], "mail = 'a@b.org'")
    assert not is_of_filter(one, [KEY], "mail='a@b.org'")
    assert not is_of_subject(one, [KEY], "mail", "a@b.org")


@pytest.mark.parametrize("type", [None, "string", "str"])
def test_a_subject_of_whatever_type(type: str | None) -> None:
    one = certificate(subject={"key": "person_id", "type": type, "value": "p-1"})
    assert is_of_subject(one, [KEY], "person_id", "p-1")
    assert not is_of_subject(one, [KEY], "person_id", "p-2")
    assert not is_of_subject(one, [KEY], "person", "p-1")
    assert is_of_subject(one, [KEY], "person_id", "p-1", type="str") == (type == "str")
    assert not is_of_filter(one, [KEY], "person_id = 'p-1'")


def test_without_the_key_it_cannot_be_said() -> None:
    one = certificate(filter="a = 1", saved="{}")
    with pytest.raises(KeyNotGiven, match=KEY.id):
        is_of_filter(one, [OTHER], "a = 1")
    by_ids = certificate(inference_ids=["a"])
    assert not is_of_filter(by_ids, [], "a = 1")
