"""Settings of access control: what would open too much is refused at the start."""

from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

_ISSUER = "https://login.example"


def _make_settings(**changes: Any) -> ApiSettings:
    return make_settings(ApiSettings, **changes)


def test_access_control_is_on_by_default() -> None:
    assert _make_settings().auth == "on"


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
        ({"oidc_client_id": "x"}, "OIDC_CLIENT_ID needs INFERENCE_STORE_OIDC_ISSUER"),
        ({"oidc_client_id": "x"}, "OIDC_CLIENT_ID needs INFERENCE_STORE_API_PUBLIC_URL"),
        ({"oidc_client_secret": "x"}, "OIDC_CLIENT_ID is not"),
        ({"oidc_device_client_id": "x"}, "OIDC_DEVICE_CLIENT_ID needs INFERENCE_STORE_OIDC_ISSUER"),
        ({"oidc_scopes": "profile"}, "lacks `openid`"),
        ({"api_public_url": "http://store.internal"}, "https://"),
        ({"auth": "of"}, "off"),
        ({"api_token": "a"}, "fewer than 16 bytes"),
        ({"api_token": "fifteen bytes.."}, "fewer than 16 bytes"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        _make_settings(**changes)


@pytest.mark.parametrize("token", ["", "sixteen bytes...", "ünf Zeichen, €€"])
def test_tokens_that_are_long_enough_or_none(token: str) -> None:
    settings = _make_settings(api_token=token)
    assert settings.api_token is not None
    assert settings.api_token.get_secret_value() == token


@pytest.mark.parametrize(
    "url", ["https://idp.internal/", "http://127.0.0.1:8080", "http://[::1]/x", "http://localhost"]
)
def test_issuers_are_kept_to_the_letter(url: str) -> None:
    settings = _make_settings(oidc_issuer=url, oidc_audience="x", oidc_jwks_url=url)
    assert (settings.oidc_issuer, settings.oidc_jwks_url) == (url, url)
