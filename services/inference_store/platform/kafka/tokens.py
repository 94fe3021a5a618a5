"""Tokens for OAUTHBEARER, by client credentials (RFC 6749, section 4.4)."""

import asyncio
import time
from urllib.parse import quote

import aiohttp
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import AuthenticationFailedError

from inference_store.platform.settings import KafkaSettings, trusting

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MOST_BYTES = 64 * 1024
# A token is requested again when a fifth of its life is left, at least these many seconds.
_EARLY_SHARE, _EARLY_SECONDS = 0.2, 5.0
_DEFAULT_SECONDS = 60.0


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """Provides a token for every connection; requests one, and caches it until shortly before its
    end."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._url = settings.kafka_oauth_token_url
        secret = settings.kafka_oauth_client_secret.get_secret_value()
        # form-encoded before Basic, as the RFC has it
        client = (quote(text, safe="") for text in (settings.kafka_oauth_client_id, secret))
        self._headers = {"Authorization": aiohttp.encode_basic_auth(*client)}
        self._form = {"grant_type": "client_credentials"}
        if settings.kafka_oauth_scope:
            self._form["scope"] = settings.kafka_oauth_scope
        self._tls = trusting(settings.kafka_ca_file, beside_system=True)
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """Return the token. Raises AuthenticationFailedError, which never contains the secret."""
        async with self._lock:
            if not self._token or time.monotonic() >= self._until:
                await self._request()
            return self._token

    async def _request(self) -> None:
        requested_at = time.monotonic()
        try:
            status, body = await self._post()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} does not answer: {error or type(error).__name__}"
            ) from error
        try:
            answer = orjson.loads(body)
            self._token = str(answer["access_token"])
            seconds = float(answer.get("expires_in", _DEFAULT_SECONDS))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            text = body[:200].decode("utf-8", "replace") if status != 200 else "no access_token"
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} answers {status}: {text}"
            ) from None
        self._until = requested_at + seconds - max(seconds * _EARLY_SHARE, _EARLY_SECONDS)

    async def _post(self) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as http,
            http.post(
                self._url,
                data=self._form,
                headers=self._headers,
                ssl=self._tls,
                allow_redirects=False,
            ) as answer,
        ):
            body = await answer.content.read(_MOST_BYTES + 1)
            while len(body) <= _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
                body += more
            if len(body) > _MOST_BYTES:
                raise aiohttp.ClientError(f"its answer is over {_MOST_BYTES} bytes")
            return answer.status, body
