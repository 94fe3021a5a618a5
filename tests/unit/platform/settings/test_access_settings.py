"""Settings of access control: what would open too much is refused at the start."""

import pytest
from pydantic import ValidationError

from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings

_ISSUER = "https://login.example"


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    for changes, words in (
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
    ):
        with subtests.test(changes=changes), pytest.raises(ValidationError, match=words):
            make_settings(ApiSettings, **changes)


def test_tokens_and_issuers_are_kept_to_the_letter() -> None:
    assert make_settings(ApiSettings).auth == "on"
    for token in ("", "sixteen bytes...", "ünf Zeichen, €€"):
        settings = make_settings(ApiSettings, api_token=token)
        assert settings.api_token is not None, token
        assert settings.api_token.get_secret_value() == token, token
    cases = ("https://idp.internal/", "http://127.0.0.1:8080", "http://[::1]/x", "http://localhost")
    for url in cases:
        issuer = {"oidc_issuer": url, "oidc_jwks_url": url, "oidc_audience": "x"}
        settings = make_settings(ApiSettings, **issuer)
        assert (settings.oidc_issuer, settings.oidc_jwks_url) == (url, url), url
