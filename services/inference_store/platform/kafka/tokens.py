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
# A token is asked for anew when a fifth of its life is left, at least these many seconds.
_EARLY_SHARE, _EARLY_SECONDS = 0.2, 5.0
_UNTOLD_SECONDS = 60.0


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc]
    """A token for every connection; one is asked for, and kept until shortly before its end."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._url = settings.kafka_oauth_token_url
        secret = settings.kafka_oauth_client_secret.get_secret_value()
        # form-encoded before Basic, as the RFC has it
        client = (quote(each, safe="") for each in (settings.kafka_oauth_client_id, secret))
        self._headers = {"Authorization": aiohttp.encode_basic_auth(*client)}
        self._form = {"grant_type": "client_credentials"}
        if settings.kafka_oauth_scope:
            self._form["scope"] = settings.kafka_oauth_scope
        self._tls = trusting(settings.kafka_ca_file, beside_system=True)
        self._lock = asyncio.Lock()
        self._token = ""
        self._until = 0.0

    async def token(self) -> str:
        """The token. Raises AuthenticationFailedError, which never holds the secret."""
        async with self._lock:
            if not self._token or time.monotonic() >= self._until:
                await self._ask()
            return self._token

    async def _ask(self) -> None:
        asked_at = time.monotonic()
        try:
            status, body = await self._post()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} does not answer: {error or type(error).__name__}"
            ) from error
        try:
            answer = orjson.loads(body)
            self._token = str(answer["access_token"])
            seconds = float(answer.get("expires_in", _UNTOLD_SECONDS))
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            said = body[:200].decode("utf-8", "replace") if status != 200 else "no access_token"
            raise AuthenticationFailedError(
                f"the token endpoint {self._url} answers {status}: {said}"
            ) from None
        self._until = asked_at + seconds - max(seconds * _EARLY_SHARE, _EARLY_SECONDS)

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
