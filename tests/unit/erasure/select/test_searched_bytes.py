"""A text is found in bytes that cannot be read, however JSON may have written it."""

import json

from inference_store.erasure.quarantine import mentions_text, names_text
from inference_store.erasure.runs import FAILURES, find_reason

_TEXT = 'José "Pépé" \\ Ölmez'


def test_finds_a_text_in_every_form() -> None:
    for payload in (
        _TEXT.encode(),
        json.dumps({"value": _TEXT}).encode(),
        json.dumps({"value": _TEXT}, ensure_ascii=False).encode(),
        json.dumps({"value": _TEXT}).replace("\\u00e9", "\\u00E9").replace("d6", "D6").encode(),
        json.dumps({"metadata": json.dumps([{"value": _TEXT}])}).encode(),
        json.dumps({"metadata": json.dumps([{"value": _TEXT}], ensure_ascii=False)}).encode(),
    ):
        assert mentions_text(payload, _TEXT), payload
        assert not mentions_text(payload, _TEXT.lower()), payload
    # a lone surrogate is no error
    assert mentions_text(b'{"a": "\\ud800', "\ud800")
    assert not mentions_text(b"{}", "\ud800")


def test_names_only_a_whole_json_string() -> None:
    assert names_text(b'{"model_id": "cam", "broken', "cam")
    assert names_text(b'{"model_id": "cam\\u00e9", "broken', "camé")
    assert not names_text(b'{"model_id": "camera", "broken', "cam")
    assert not names_text(b'{"model_id": "cam', "cam")


def test_a_reason_is_of_the_list() -> None:
    for code, message, reason in (
        ("InvalidRequest", "Object is WORM protected and cannot be overwritten", "object_locked"),
        ("AccessDenied", "Access Denied because object protected by object lock.", "object_locked"),
        ("AccessDenied", "Access Denied.", "access_denied"),
        ("StillThere", "deleted without a fault, and listed still", "still_there"),
        ("SlowDown", "Please reduce your request rate.", "other"),
    ):
        assert find_reason(code, message) == reason, code
        assert reason in FAILURES, code
