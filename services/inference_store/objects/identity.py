"""Our identity for the object store without keys: a role, proved by a web identity's token."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from minio.credentials.providers import (
    AWSConfigProvider,
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    WebIdentityProvider,
)
from urllib3 import PoolManager

from inference_store.platform.settings import PREFIX, BlobSettings, WrongSetting

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
    """Return what the settings name, else the AWS_* names that a cluster injects; None for neither.

    Raises WrongSetting if a role has no token, or a token no role.
    """
    if settings.s3_access_key.get_secret_value():
        return None
    variables = os.environ if environment is None else environment
    role = settings.s3_role_arn or variables.get("AWS_ROLE_ARN")
    token = settings.s3_web_identity_token_file or variables.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if not role and not token:
        return None
    if not role or not token:
        present, missing = ("ROLE_ARN", "WEB_IDENTITY_TOKEN_FILE")[:: 1 if role else -1]
        raise WrongSetting(
            f"{PREFIX}S3_{present} (or AWS_{present}) is given and {PREFIX}S3_{missing}"
            f" (or AWS_{missing}) is not: S3 by web identity needs both."
        )
    region = settings.s3_region
    aws = f"https://sts.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")
    endpoint = settings.s3_sts_endpoint or variables.get("AWS_ENDPOINT_URL_STS") or aws
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
