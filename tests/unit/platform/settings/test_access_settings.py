"""Settings of access control: what would open too much is refused at the start."""

from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

_ISSUER = "https://login.example"


def _settings(**changes: Any) -> ApiSettings:
    return make_settings(ApiSettings, **changes)


def test_access_control_is_on_by_default() -> None:
    assert _settings().auth == "on"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"oidc_issuer": _ISSUER}, "OIDC_AUDIENCE"),
        ({"oidc_issuer": _ISSUER, "oidc_audience": ""}, "OIDC_AUDIENCE"),
        ({"oidc_issuer": "login.example", "oidc_audience": "x"}, "https://"),
        ({"oidc_issuer": "http://idp.internal", "oidc_audience": "x"}, "https://"),
        ({"oidc_issuer": "http://localhost.evil.example", "oidc_audience": "x"}, "https://"),
        ({"oidc_issuer": "https://", "oidc_audience": "x"}, "https://"),
        ({"oidc_jwks_url": "http://idp.internal/keys"}, "loopback"),
        ({"oidc_jwks_url": "file:///etc/passwd"}, "https://"),
        ({"oidc_roles": "[]"}, "valid dictionary"),
        ({"auth": "of"}, "off"),
        ({"api_token": "a"}, "fewer than 16 bytes"),
        ({"api_token": "fifteen bytes.."}, "fewer than 16 bytes"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _settings(**changes)


@pytest.mark.parametrize("token", ["", "sixteen bytes...", "ünf Zeichen, €€"])
def test_tokens_that_are_long_enough_or_none(token: str) -> None:
    made = _settings(api_token=token)
    assert made.api_token is not None
    assert made.api_token.get_secret_value() == token


@pytest.mark.parametrize(
    "url", ["https://idp.internal/", "http://127.0.0.1:8080", "http://[::1]/x", "http://localhost"]
)
def test_issuers_are_kept_to_the_letter(url: str) -> None:
    made = _settings(oidc_issuer=url, oidc_audience="x", oidc_jwks_url=url)
    assert (made.oidc_issuer, made.oidc_jwks_url) == (url, url)
