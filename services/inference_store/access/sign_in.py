"""Signing in at an OIDC issuer: an authorization code with PKCE, which the server exchanges."""

import asyncio
import hmac
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import structlog

from inference_store.access.sign_in_attempt import CALLBACK, Attempt
from inference_store.inference.errors import Unauthorized, Unavailable
from inference_store.platform.settings import AccessSettings

from .credentials import Identity
from .tokens import IssuerUnavailable, Tokens, ask, discover, read_endpoint

_FRESH_SECONDS = 300.0
_RETRY_SECONDS = 10.0
TIMEOUT_SECONDS = 10.0
"""How long the issuer may take to answer a request."""
_log = structlog.get_logger()


class SignIn:
    """The client of an issuer that signs browsers in."""

    def __init__(self, settings: AccessSettings, issuer: str, client: str, tokens: Tokens) -> None:
        self._issuer = issuer
        self._client = client
        self._secret = settings.oidc_client_secret
        self._scopes = settings.oidc_scopes
        self._public_url = (settings.api_public_url or "").rstrip("/")
        self._tokens = tokens
        self._document: Mapping[str, Any] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()

    @property
    def name(self) -> str:
        """The issuer's name for people: its host."""
        return urlsplit(self._issuer).hostname or self._issuer

    @property
    def public_url(self) -> str:
        """The URL at which browsers reach the api, without a slash at its end."""
        return self._public_url

    async def begin(self, attempt: Attempt) -> str:
        """Return where a browser goes to sign in. Raises Unavailable."""
        url = await self._endpoint("authorization_endpoint")
        question = {
            "response_type": "code",
            "client_id": self._client,
            "redirect_uri": self._public_url + CALLBACK,
            "scope": self._scopes,
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": attempt.challenge,
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(question)}"

    async def finish(self, attempt: Attempt, answer: Mapping[str, str]) -> Identity:
        """Return who signed in, by what the issuer sent with the browser.

        Raises Unauthorized, Unavailable.
        """
        if not hmac.compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise Unauthorized("The answer does not belong to this browser's sign-in attempt.")
        async with self._fetching:
            await self._refresh()
        # whether all its answers name it (RFC 9207)
        names = self._document.get("authorization_response_iss_parameter_supported") is True
        if answer.get("iss") != self._issuer and ("iss" in answer or names):
            raise Unauthorized("The answer names another issuer, or none.")
        if "code" not in answer:
            raise Unauthorized(f"The issuer refused: {answer.get('error', 'no reason')[:100]}.")
        return await self._identify(attempt, await self._exchange(attempt, answer["code"]))

    async def _identify(self, attempt: Attempt, told: Mapping[str, Any]) -> Identity:
        """Return who signed in: with the rights of the access token, if the store accepts it as a
        bearer's, else with those of the ID token."""
        identity = await self._tokens.identify(
            str(told.get("id_token")), self._client, attempt.nonce
        )
        access = told.get("access_token")
        if not isinstance(access, str) or access.count(".") != 2:
            return identity
        try:
            of_bearer = await self._tokens.identity(access)
        except Unauthorized:  # it is meant for another audience
            return identity
        if of_bearer.caller != identity.caller:
            raise Unauthorized("The two tokens of the issuer name different subjects.")
        return of_bearer

    async def _exchange(self, attempt: Attempt, code: str) -> Mapping[str, Any]:
        """Return the tokens for a code. Raises Unauthorized, Unavailable."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._public_url + CALLBACK,
            "code_verifier": attempt.verifier,
        }
        url, headers = await self._endpoint("token_endpoint"), {}
        methods = self._document.get("token_endpoint_auth_methods_supported")
        if self._secret is None:
            form["client_id"] = self._client
        elif isinstance(methods, list) and "client_secret_basic" not in methods:
            form |= {"client_id": self._client, "client_secret": self._secret.get_secret_value()}
        else:
            # both are escaped first, as RFC 6749 (2.3.1) requires
            secret = quote(self._secret.get_secret_value(), safe="")
            headers["Authorization"] = aiohttp.encode_basic_auth(quote(self._client, ""), secret)
        status, told = await self._ask(url, data=form, headers=headers)
        if status != 200:
            error = str(told.get("error"))[:100]
            _log.warning("issuer refused a code", action="code_refused", status=status, error=error)
            raise Unauthorized("The issuer rejected its own authorization code.")
        return told

    async def _ask(self, url: str, **more: Any) -> tuple[int, Mapping[str, Any]]:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
                return await ask(session, "POST", url, **more)
        except (IssuerUnavailable, TimeoutError) as exc:
            raise self._away(exc) from None

    async def _endpoint(self, name: str) -> str:
        async with self._fetching:
            await self._refresh()
        try:
            return read_endpoint(self._document, self._issuer, name)
        except IssuerUnavailable as exc:
            raise self._away(exc) from None

    async def _refresh(self) -> None:
        """Read the metadata of the issuer again if it is old, at a limited rate for all callers."""
        now = time.monotonic()
        if now - self._fetched_at < _FRESH_SECONDS or now - self._tried_at < _RETRY_SECONDS:
            return
        self._tried_at = now
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), aiohttp.ClientSession() as session:
                self._document = await discover(session, self._issuer)
            self._fetched_at = time.monotonic()
        except (IssuerUnavailable, TimeoutError) as exc:  # what is known may still be true
            self._away(exc)

    def _away(self, exc: Exception) -> Unavailable:
        why = str(exc) or f"no answer within {TIMEOUT_SECONDS:g} s"
        _log.warning("issuer away", action="issuer_away", issuer=self._issuer, error=why)
        return Unavailable(f"The issuer {self._issuer} is unavailable.")
