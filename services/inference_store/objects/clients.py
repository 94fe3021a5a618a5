"""The two S3 clients: obstore for reading and writing, minio for everything else.

obstore takes a half to a fifth of minio-py's CPU per request, but has no versions, no bulk delete
by version and no presigned links. Nothing connects before the first request.
"""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    WebIdentityProvider,
)
from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from minio.sse import Sse, SseKMS, SseS3
from obstore.store import S3Store
from urllib3 import PoolManager

from inference_store.inference.errors import AccessDenied, ObjectStoreUnavailable
from inference_store.platform.settings import BlobSettings, WrongSetting

if TYPE_CHECKING:  # typed dictionaries that obstore has for type checkers alone
    from obstore.store import ClientConfig, S3Config


RETRIES = 2
# What fails in this time is tried again; what has timed out is not: callers have their own retries.
_RETRIED_SECONDS: Final = 1.0
_SLOWEST: Final = 2 * 1024 * 1024
"""Bytes a second that a large object is sent with at least."""
_LONGEST: Final = timedelta(hours=1)
"""How long an object may take to arrive, as long as some of it does."""
_AWS = "https://s3.amazonaws.com"
_REFUSED = 300
_ERRORS = (b"<?xml", b"<Error")
# ValueError: no credentials, or a name that no bucket can have.
UNAVAILABLE = (
    *(S3Error, ServerError, InvalidResponseError),
    *(urllib3.exceptions.HTTPError, OSError, ValueError),
)


def obstore_client(settings: BlobSettings, bucket: str, *, bytes: int = 0) -> S3Store:
    """Return a client for the objects of one bucket; safe to share between threads. `bytes`: that
    one request sends, which may take longer than others."""
    connecting = timedelta(seconds=settings.s3_timeout_seconds)
    silence = connecting + timedelta(seconds=bytes / _SLOWEST)
    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": connecting,
        "read_timeout": silence,
        "timeout": _LONGEST,
    }
    if settings.s3_ca_file is not None:
        options["root_certificate"] = settings.s3_ca_file.read_bytes()
    return S3Store(
        bucket,
        config=_config(settings),
        client_options=options,
        # obstore retries for three minutes by default
        retry_config={
            "max_retries": RETRIES,
            "retry_timeout": min(connecting / 2, timedelta(seconds=_RETRIED_SECONDS)),
        },
    )


def _config(settings: BlobSettings) -> "S3Config":
    config: S3Config = {"region": settings.s3_region, **obstore_encryption(settings)}
    if settings.s3_endpoint is not None:
        config["endpoint"] = settings.s3_endpoint
        config["virtual_hosted_style_request"] = False
    if settings.s3_access_key.get_secret_value():
        config["access_key_id"] = settings.s3_access_key.get_secret_value()
        config["secret_access_key"] = settings.s3_secret_key.get_secret_value()
    identity = web_identity(settings)
    if identity is not None:
        config["role_arn"], config["role_session_name"] = identity.role, identity.session
        config["web_identity_token_file"] = str(identity.token_file)
        # its declared types have another name, which it refuses
        config["endpoint_url_sts"] = identity.sts_endpoint  # type: ignore[typeddict-unknown-key]
    return config


def minio_client(settings: BlobSettings, endpoint: str | None) -> Minio:
    """Return a client for versions, bulk deletes, lists and links; safe to share between
    threads."""
    address = urlsplit(endpoint or _AWS)
    if address.path.strip("/") or not address.netloc:
        raise ValueError(f"the S3 endpoint {endpoint!r} must be like http://host:port, no path")
    key, secret = settings.s3_access_key, settings.s3_secret_key
    http = http_pool(settings)
    has_key = bool(key.get_secret_value())
    return Minio(
        address.netloc,
        access_key=key.get_secret_value() if has_key else None,
        secret_key=secret.get_secret_value() if has_key else None,
        # without a key in the settings: the places where AWS's own clients look
        credentials=None if has_key else provider(settings, http),
        secure=address.scheme == "https",
        region=settings.s3_region,
        http_client=http,
    )


class _Retry(urllib3.Retry):
    """Raises what has timed out, and tries everything else again."""

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: urllib3.BaseHTTPResponse | None = None,
        error: Exception | None = None,
        *more: Any,
        **named: Any,
    ) -> Self:
        """Return the retries that are left."""
        if isinstance(error, urllib3.exceptions.TimeoutError):
            raise error
        return super().increment(method, url, response, error, *more, **named)


class _Pool(urllib3.PoolManager):
    """Corrects the content type of errors: minio-py only reads errors of `application/xml`.

    Some servers send `text/xml` (rclone), or none: a body that begins like an error of S3 gets that
    type here.
    """

    def urlopen(  # type: ignore[override]  # as in urllib3 itself
        self, method: str, url: str, redirect: bool = True, **arguments: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request as urllib3 does."""
        answer = super().urlopen(method, url, redirect, **arguments)
        if answer.status >= _REFUSED and (answer.data or b"").lstrip().startswith(_ERRORS):
            answer.headers["Content-Type"] = "application/xml"
        return answer


def http_pool(settings: BlobSettings) -> urllib3.PoolManager:
    """Return the connection pool of the minio client, which can read the errors of every S3
    server."""
    timeout = settings.s3_timeout_seconds
    trusted = _trust(os.environ.get("SSL_CERT_FILE") or certifi.where(), settings.s3_ca_file)
    return _Pool(
        timeout=urllib3.Timeout(total=timeout),
        maxsize=16,
        ssl_context=trusted,
        retries=_Retry(total=RETRIES, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]),
    )


@cache
def _trust(bundle: str, ca_file: Path | None) -> ssl.SSLContext:
    """Return a TLS context, shared by all clients: reading the bundle takes 20 ms of CPU."""
    context = ssl.create_default_context(cafile=bundle)
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


# Credentials in URLs: a client puts its request's URL into its error.
_SECRET = re.compile(r"(WebIdentityToken|X-Amz-Security-Token|X-Amz-Signature)=[^&\s)\"']+", re.I)


def without_secrets(text: str) -> str:
    """Return a client's error as it may be logged and shown."""
    return _SECRET.sub(r"\1=…", text)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turn minio-py's errors about server, network, bucket or rights into
    ObjectStoreUnavailable."""
    try:
        yield
    except UNAVAILABLE as exc:
        text = f"the object store says: {without_secrets(str(exc))}"
        if isinstance(exc, S3Error) and exc.response.status == 403:
            raise AccessDenied(text) from exc
        raise ObjectStoreUnavailable(text) from None


_NO_VERSIONS = {"NotImplemented", "XNotImplemented", "MethodNotAllowed"}


def knows_no_versions(error: MinioException) -> bool:
    """Return whether a server does not list versions because it keeps none; some report that
    without XML."""
    if isinstance(error, S3Error):
        return error.code in _NO_VERSIONS
    return isinstance(error, InvalidResponseError) and "Response code: 501" in str(error)


_SESSION = "inference-store"


@dataclass(frozen=True, slots=True)
class WebIdentity:
    """A role, the file of the token that proves it, and the endpoint that exchanges it for keys."""

    role: str
    token_file: Path
    sts_endpoint: str
    session: str


def web_identity(
    settings: BlobSettings, environment: Mapping[str, str] | None = None
) -> WebIdentity | None:
    """Return what the AWS_* names say that a cluster injects; None without them, or with keys.

    Raises WrongSetting if a role has no token, a token no role, or the token would go out without
    TLS.
    """
    if settings.s3_access_key.get_secret_value():
        return None
    variables = os.environ if environment is None else environment
    role = variables.get("AWS_ROLE_ARN")
    token = variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if not role and not token:
        return None
    if not role or not token:
        present, missing = ("ROLE_ARN", "WEB_IDENTITY_TOKEN_FILE")[:: 1 if role else -1]
        raise WrongSetting(
            f"AWS_{present} is set and AWS_{missing} is not: S3 by web identity needs both."
        )
    region = settings.s3_region
    aws = f"https://sts.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    endpoint = variables.get("AWS_ENDPOINT_URL_STS") or aws
    if not endpoint.startswith("https://"):
        raise WrongSetting("AWS_ENDPOINT_URL_STS must begin with https://: a token goes there.")
    session = variables.get("AWS_ROLE_SESSION_NAME") or _SESSION
    return WebIdentity(role, Path(token), endpoint, session)


def provider(settings: BlobSettings, http: PoolManager) -> Provider:
    """Return minio's credentials if no key is set: web identity, else the places where AWS's
    clients look."""
    identity = web_identity(settings)
    if identity is None:
        return ChainedProvider(
            [EnvAWSProvider(), AWSConfigProvider(), IamAwsProvider(http_client=http)]
        )
    return WebIdentityProvider(
        # read again each time: a cluster renews the token
        jwt_provider_func=lambda: {"access_token": identity.token_file.read_text().strip()},
        sts_endpoint=identity.sts_endpoint,
        role_arn=identity.role,
        role_session_name=identity.session,
        http_client=http,
    )


class _Kms(SseKMS):
    """A key that stays with the server: unlike a client's key, it may be named over http."""

    def tls_required(self) -> bool:
        return False


def obstore_encryption(settings: BlobSettings) -> "S3Config":
    """Return obstore's configuration of encryption, which it sends with every put."""
    if settings.s3_encryption == "SSE-S3":
        return {"server_side_encryption": "AES256"}
    if settings.s3_encryption == "SSE-KMS" and settings.s3_kms_key_id:
        return {"server_side_encryption": "aws:kms", "sse_kms_key_id": settings.s3_kms_key_id}
    return {}


def minio_encryption(settings: BlobSettings) -> Sse | None:
    """Return minio's argument for encryption of every put."""
    if settings.s3_encryption == "SSE-S3":
        return SseS3()
    if settings.s3_encryption == "SSE-KMS" and settings.s3_kms_key_id:
        return _Kms(settings.s3_kms_key_id, {})
    return None
