"""The receiver of the docs checks messages as the store sends them."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference_store.export.webhooks.signature import make_headers
from inference_store.platform.settings.export_webhooks import read_webhook_secrets

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "export-jobs.md").read_text()
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
BODY = b'{"type": "export.erased"}'


@pytest.fixture
def check_message() -> Callable[..., None]:
    """The function that the page shows."""
    [source] = re.findall(r"^```python\n(.*?def check_message.*?)^```", PAGE, re.DOTALL | re.M)
    shown: dict[str, Any] = {}
    exec(source.rsplit("```python\n", 1)[-1], shown)
    checker: Callable[..., None] = shown["check_message"]
    return checker


def sign(secrets: str, seconds_ago: int = 0) -> dict[str, str]:
    keys = read_webhook_secrets(secrets)
    return dict(make_headers(keys, "an-id", int(time.time()) - seconds_ago, BODY))


def test_the_receiver_of_the_docs(check_message: Callable[..., None]) -> None:
    check_message(sign(SECRET), BODY, SECRET)
    check_message(sign(f"{OTHER} {SECRET}"), BODY, SECRET)
    with pytest.raises(ValueError, match="somebody else"):
        check_message(sign(OTHER), BODY, SECRET)
    with pytest.raises(ValueError, match="somebody else"):
        check_message(sign(SECRET), BODY + b" ", SECRET)
    with pytest.raises(ValueError, match="somebody else"):
        check_message(sign(SECRET) | {"webhook-id": "another"}, BODY, SECRET)
    with pytest.raises(ValueError, match="old"):
        check_message(sign(SECRET, 301), BODY, SECRET)
