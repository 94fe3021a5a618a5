"""Settings that fight each other are refused when a service starts, by name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from inference_store.platform.settings import PREFIX, ApiSettings, IngesterSettings
from tests.servers.certificates import Authority, Pair
from tests.settings import make_settings

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
    (
        SSL | CERTIFICATE | {"kafka_key_file": "{other_key}"},
        "$KAFKA_CERTIFICATE_FILE and $KAFKA_KEY_FILE are no pair",
    ),
    (SSL | {"kafka_ca_file": "{key}"}, "holds no certificates"),
    (SSL | {"kafka_ca_file": "/nowhere"}, "not point to a file"),
    ({"postgres_ca_file": "{ca}"}, "$POSTGRES_CA_FILE is set, but only $POSTGRES_TLS=verify-full"),
    (
        {"postgres_dsn": "postgresql://u:p@h/d", "postgres_password": "p"},
        "$POSTGRES_DSN has a password and $POSTGRES_PASSWORD is set",
    ),
    (
        {"postgres_dsn": f"{DSN}?sslmode=require", "postgres_tls": "disable"},
        "$POSTGRES_DSN names sslmode and $POSTGRES_TLS is set",
    ),
    ({"s3_encryption": "SSE-KMS"}, "$S3_ENCRYPTION=SSE-KMS needs $S3_KMS_KEY_ID"),
    ({"s3_sts_endpoint": "http://h"}, "$S3_STS_ENDPOINT must begin with https"),
    ({"s3_kms_key_id": "k"}, "$S3_KMS_KEY_ID is set, but only $S3_ENCRYPTION=SSE-KMS"),
    ({"s3_access_key": "a"}, "$S3_ACCESS_KEY is set and $S3_SECRET_KEY is not"),
    (KEYS | {"s3_role_arn": "r"}, "$S3_ACCESS_KEY and $S3_ROLE_ARN are set"),
    ({"s3_endpoint": "http://h", "s3_ca_file": "{ca}"}, "$S3_CA_FILE is set, but .* is not https"),
    (
        {"admin_tls_certificate_file": "{certificate}"},
        "$ADMIN_TLS_CERTIFICATE_FILE is set and $ADMIN_TLS_KEY_FILE is not",
    ),
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


def test_accepts_settings_that_fit_together() -> None:
    for fields in (
        LOGIN | USER,
        NO_TLS,
        OAUTH | {"kafka_oauth_scope": "s"},
        {"postgres_tls": "verify-full"},
        {"postgres_dsn": f"{DSN}?sslmode=require"},
        {"s3_encryption": "SSE-KMS", "s3_kms_key_id": "k"},
    ):
        make_settings(IngesterSettings, **fields)


def test_accepts_a_key_with_a_password(tmp_path: Path) -> None:
    pair: Pair = Authority(tmp_path).issue("client", password="open sesame")
    files = {"kafka_certificate_file": pair.certificate, "kafka_key_file": pair.key}
    encrypted: dict[str, Any] = {"kafka_security_protocol": "SSL", **files}
    make_settings(IngesterSettings, kafka_key_password="open sesame", **encrypted)
    with pytest.raises(ValidationError, match="are no pair"):
        make_settings(IngesterSettings, **encrypted)
