from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference_store.store.layout import belongs_to, key_of

CAPTURE = UUID("0192f0c4-0000-7000-8000-000000000001")
AT = datetime(2026, 11, 1, 23, 59, tzinfo=UTC)


@given(st.text(min_size=1, max_size=40), st.sampled_from(["", "captures", "a/b"]))
def test_our_own_keys_are_recognised(model_id: str, prefix: str) -> None:
    model_id = model_id.encode("utf-8", "replace").decode()
    key = key_of(prefix, model_id, AT, CAPTURE, "response")
    assert belongs_to(key, model_id, CAPTURE)
    assert not belongs_to(key, model_id, uuid4())
    assert not belongs_to(key, model_id, None)
    assert not belongs_to(key, model_id + "2", CAPTURE)
    assert not belongs_to(key, None, CAPTURE)


@pytest.mark.parametrize(
    "key",
    [
        f"{CAPTURE}/data",
        f"m/2026/11/01/{CAPTURE}/data",
        f"m/2026/11/01/23/{CAPTURE}/other",
        f"m/2026/11/01/xx/{CAPTURE}/data",
        "m/2026/11/01/23/1/data",
        "data",
        "",
    ],
)
def test_other_keys_may_be_shared(key: str) -> None:
    assert not belongs_to(key, "m", CAPTURE)
