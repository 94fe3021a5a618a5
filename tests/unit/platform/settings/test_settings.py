"""Settings that are unknown, fight each other or open too much are refused by name; a secret may be
in a file."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from inference_store.platform.settings import (
    GROUPS,
    PREFIX,
    ApiSettings,
    CaptureSettings,
    IngesterSettings,
    PostgresSettings,
    list_unknown,
    secrets_of,
)
from tests.servers.certificates import Authority, Pair
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
        ({"policy_grace_seconds": 1e12}, "less than or equal"),  # beyond the calendar
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


LOGIN = {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"}
USER = {"kafka_sasl_username": "u", "kafka_sasl_password": "p"}
OAUTH = {
    "kafka_security_protocol": "SASL_SSL",
    "kafka_sasl_mechanism": "OAUTHBEARER",
    "kafka_oauth_token_url": "https://issuer/token",
    "kafka_oauth_client_id": "c",
    "kafka_oauth_client_secret": "s",
}

SSL = {"kafka_security_protocol": "SSL"}
CERTIFICATE = {"kafka_certificate_file": "{certificate}"}
KEYS = {"s3_access_key": "a", "s3_secret_key": "s"}
DSN = "postgresql://h/d"
NO_TLS = LOGIN | USER | {"kafka_security_protocol": "SASL_PLAINTEXT"}
OTHER_KEY = SSL | CERTIFICATE | {"kafka_key_file": "{other_key}"}
TWO_PASSWORDS = {"postgres_dsn": "postgresql://u:p@h/d", "postgres_password": "p"}
TWO_MODES = {"postgres_dsn": f"{DSN}?sslmode=require", "postgres_tls": "disable"}
ADMIN = {"admin_tls_certificate_file": "{certificate}"}

FIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"kafka_sasl_mechanism": "PLAIN", **USER}, "$KAFKA_SASL_MECHANISM=PLAIN needs SASL_SSL"),
    ({"kafka_security_protocol": "SASL_SSL"}, "needs $KAFKA_SASL_MECHANISM"),
    (LOGIN, "$KAFKA_SASL_MECHANISM=PLAIN needs $KAFKA_SASL_USERNAME"),
    (LOGIN | {"kafka_sasl_username": "u"}, "needs $KAFKA_SASL_PASSWORD"),
    (USER, "$KAFKA_SASL_USERNAME is set, but"),
    (OAUTH | USER, "$KAFKA_SASL_USERNAME is set, but $KAFKA_SASL_MECHANISM=OAUTHBEARER"),
    (OAUTH | {"kafka_oauth_client_secret": ""}, "needs $KAFKA_OAUTH_CLIENT_SECRET"),
    (OAUTH | {"kafka_oauth_token_url": "issuer"}, "$KAFKA_OAUTH_TOKEN_URL must begin with https"),
    (LOGIN | USER | {"kafka_oauth_scope": "s"}, "$KAFKA_OAUTH_SCOPE is set, but"),
    ({"kafka_ca_file": "{ca}"}, "$KAFKA_CA_FILE is set, but .*PLAINTEXT does not encrypt"),
    (NO_TLS | {"kafka_ca_file": "{ca}"}, "$KAFKA_CA_FILE is set, but .*SASL_PLAINTEXT does not en"),
    (SSL | CERTIFICATE, "$KAFKA_CERTIFICATE_FILE is set and $KAFKA_KEY_FILE is not"),
    (SSL | {"kafka_key_password": "p"}, "$KAFKA_KEY_PASSWORD is set and $KAFKA_KEY_FILE is not"),
    (OTHER_KEY, "$KAFKA_CERTIFICATE_FILE and $KAFKA_KEY_FILE are no pair"),
    (SSL | {"kafka_ca_file": "{key}"}, "holds no certificates"),
    (SSL | {"kafka_ca_file": "/nowhere"}, "not point to a file"),
    ({"postgres_ca_file": "{ca}"}, "$POSTGRES_CA_FILE is set, but only $POSTGRES_TLS=verify-full"),
    (TWO_PASSWORDS, "$POSTGRES_DSN has a password and $POSTGRES_PASSWORD is set"),
    (TWO_MODES, "$POSTGRES_DSN names sslmode and $POSTGRES_TLS is set"),
    ({"s3_encryption": "SSE-KMS"}, "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID"),
    ({"s3_kms_key_id": "k"}, "$S3_KMS_KEY_ID is set, but only $S3_ENCRYPTION=SSE-KMS"),
    ({"s3_access_key": "a"}, "$S3_ACCESS_KEY is set and $S3_SECRET_KEY is not"),
    ({"s3_endpoint": "http://h", "s3_ca_file": "{ca}"}, "$S3_CA_FILE is set, but .* is not https"),
    (ADMIN, "$ADMIN_TLS_CERTIFICATE_FILE is set and $ADMIN_TLS_KEY_FILE is not"),
]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    authority = Authority(tmp_path)
    first, second = authority.issue("one"), authority.issue("other")
    keys = {"key": first.key, "other_key": second.key}
    return {"ca": authority.ca_file, "certificate": first.certificate, **keys}


def test_they_are_refused_by_name(files: dict[str, Path], subtests: pytest.Subtests) -> None:
    for fields, sentence in FIGHTS:
        placed = {name: str(value).format(**files) for name, value in fields.items()}
        refused = pytest.raises(ValidationError, match=sentence.replace("$", PREFIX))
        with subtests.test(fields=fields), refused:
            make_settings(IngesterSettings, **placed)
    with pytest.raises(ValidationError, match="S_KEY_FILE is set and INFERENCE_STORE_API_TLS_CERT"):
        make_settings(ApiSettings, api_tls_key_file=files["key"])
    with pytest.raises(ValidationError, match="_REGISTRY_URL needs INFERENCE_STORE_PROXY_REG"):
        make_settings(CaptureSettings, proxy_registry_url="http://api:8080")


def test_accepts_settings_that_fit_together(tmp_path: Path) -> None:
    for fields in (
        LOGIN | USER,
        NO_TLS,
        OAUTH | {"kafka_oauth_scope": "s"},
        {"postgres_tls": "verify-full"},
        {"postgres_dsn": f"{DSN}?sslmode=require"},
        {"s3_encryption": "SSE-KMS", "s3_kms_key_id": "k"},
    ):
        make_settings(IngesterSettings, **fields)
    pair: Pair = Authority(tmp_path).issue("client", password="open sesame")
    files = {"kafka_certificate_file": pair.certificate, "kafka_key_file": pair.key}
    encrypted: dict[str, Any] = {"kafka_security_protocol": "SSL", **files}
    make_settings(IngesterSettings, kafka_key_password="open sesame", **encrypted)
    with pytest.raises(ValidationError, match="are no pair"):
        make_settings(IngesterSettings, **encrypted)


def test_an_unknown_setting_is_refused_with_the_nearest_unless_it_is_anothers() -> None:
    [sentence] = list_unknown({"INFERENCE_STORE_POSTGRESS_DSN": "x"})
    assert "INFERENCE_STORE_POSTGRES_DSN" in sentence
    lines = list_unknown({"INFERENCE_STORE_API_PROT": "1", "INFERENCE_STORE_S3_BUKET": "x"})
    for line, name in zip(lines, ("API_PROT", "S3_BUKET"), strict=True):
        assert line.startswith(f"There is no setting INFERENCE_STORE_{name}.")
    # Who asks the store and starts it does so in one shell: names of the client are there.
    names = ("PATH", "INFERENCE_STORE_API_PORT", "INFERENCE_STORE_URL", "INFERENCE_STORE_KEY")
    assert list_unknown(dict.fromkeys(names, "x")) == []


def test_buckets_and_shares_follow_from_others() -> None:
    settings = IngesterSettings(s3_bucket="a", s3_allowed_buckets=" b, ,c")
    assert settings.buckets == {"a", "b", "c"}
    for pool, most, of_one in ((1, 1, 1), (2, 1, 1), (5, 3, 1), (10, 6, 3), (40, 24, 12)):
        pooled = make_settings(ApiSettings, postgres_pool_size=pool)
        assert (pooled.most_queries, pooled.most_queries_of_one) == (most, of_one), pool


PASSWORD = "INFERENCE_STORE_POSTGRES_PASSWORD"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use no `.env` but the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret")
    return path


def test_every_secret_may_be_a_file(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {(group, name) for group in GROUPS for name in secrets_of(group)}
    assert len(names) > 10
    secret.write_text("postgresql://s3cret \n")
    for group, name in names:
        setting = f"INFERENCE_STORE_{name.upper()}_FILE"
        with monkeypatch.context() as changed:
            changed.setenv(setting, str(secret))
            assert list_unknown({setting: str(secret)}) == []
            # some secrets want company; what counts here is that this one was read
            read: dict[str, Any] = {}
            for source in group.settings_customise_sources(group, *_make_sources(group)):
                read |= source()
        assert read[name] == "postgresql://s3cret ", (group, name)


def _make_sources(group: type[BaseSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
    nothing = InitSettingsSource(group, {})
    return nothing, EnvSettingsSource(group), DotEnvSettingsSource(group), nothing


def test_a_file_named_in_env_counts_too(secret: Path) -> None:
    secret.with_name(".env").write_text(f"{PASSWORD}=\n{PASSWORD}_FILE={secret}\n")
    assert PostgresSettings().postgres_password.get_secret_value() == "s3cret"


def test_a_secret_given_twice_is_refused(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "another")
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(secret))
    twice = f"{PASSWORD} and {PASSWORD}_FILE are both given"
    with pytest.raises(ValidationError, match=twice) as refusal:
        PostgresSettings()
    assert "another" not in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_a_file_that_is_no_secret_is_refused(
    secret: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setenv(f"{PASSWORD}_FILE", str(secret))
    for content, sentence in (
        (b"\n", "is empty"),
        (b"x" * 70_000, "is over"),
        (b"\xff", "cannot"),
        (None, "cannot be read"),
    ):
        secret.unlink()
        if content is not None:
            secret.write_bytes(content)
        refused = pytest.raises(ValidationError, match=f"{PASSWORD}_FILE: .*{sentence}")
        with subtests.test(sentence), refused:
            PostgresSettings()
    [sentence] = list_unknown({"INFERENCE_STORE_API_PORT_FILE": "x"})
    assert "INFERENCE_STORE_API_PORT_FILE" in sentence
