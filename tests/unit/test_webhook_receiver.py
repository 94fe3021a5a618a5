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


def load_check_message() -> Callable[..., None]:
    """Return the function that the page shows."""
    [source] = re.findall(r"^```python\n(.*?def check_message.*?)^```", PAGE, re.DOTALL | re.M)
    shown: dict[str, Any] = {}
    exec(source.rsplit("```python\n", 1)[-1], shown)
    checker: Callable[..., None] = shown["check_message"]
    return checker


def sign(secrets: str, seconds_ago: int = 0) -> dict[str, str]:
    keys = read_webhook_secrets(secrets)
    return dict(make_headers(keys, "an-id", int(time.time()) - seconds_ago, BODY))


def test_the_receiver_of_the_docs() -> None:
    check_message = load_check_message()
    check_message(sign(SECRET), BODY, SECRET)
    check_message(sign(f"{OTHER} {SECRET}"), BODY, SECRET)
    for headers, body, reason in (
        (sign(OTHER), BODY, "somebody else"),
        (sign(SECRET), BODY + b" ", "somebody else"),
        (sign(SECRET) | {"webhook-id": "another"}, BODY, "somebody else"),
        (sign(SECRET, 301), BODY, "old"),
    ):
        with pytest.raises(ValueError, match=reason):
            check_message(headers, body, SECRET)
