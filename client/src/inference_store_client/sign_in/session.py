"""A sign-in that is used, and renewed before it ends."""

import threading
from dataclasses import dataclass, field
from typing import Final

import httpx

from inference_store_client.errors import ConnectionFailed, SignInFailed, StoreError
from inference_store_client.http_clients import open_http
from inference_store_client.origin import Origin

from .cache import TokenCache
from .issuer import TRANSIENT, discover
from .tokens import Tokens, read_tokens

_EARLY_SECONDS: Final = 60.0
"""How long before its end a token is renewed: longer than clocks differ, and requests take."""
_ENDED: Final = "has ended: istore login"


@dataclass(slots=True)
class SignIn:
    """The sign-in of a user to one store. The token is for that store's origin alone."""

    origin: Origin
    cache: TokenCache
    tokens: Tokens = field(repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def is_ending(self) -> bool:
        """Whether it must be renewed before the next request."""
        return self.tokens.is_ending(0 if self.tokens.refresh_token is None else _EARLY_SECONDS)

    def renew(self) -> None:
        """Renew it, or take what another process has renewed. Blocks. Raises StoreError.

        The issuer is asked first, then the file is written, and then the tokens are used: after a
        crash between them the file has a refresh token that may be spent, and one signs in again.
        """
        with self._lock, self.cache.lock():
            kept = self.cache.find(self.origin)
            if kept is None:
                raise SignInFailed(f"the sign-in to {self.origin.url} {_ENDED}")
            self.tokens = kept
            if self.is_ending and (renewed := self._renew(kept)) is not None:
                self.cache.put(self.origin, renewed)
                self.tokens = renewed

    def _renew(self, tokens: Tokens) -> Tokens | None:
        """Return new tokens; None: those before have not ended, and the issuer gives none now."""
        if tokens.refresh_token is None:
            raise SignInFailed(f"the sign-in to {self.origin.url} {_ENDED}")
        try:
            with open_http(httpx.Client) as http:
                return refresh(tokens, tokens.refresh_token, http)
        except StoreError:
            if tokens.is_ending(0):
                raise
            return None


def refresh(tokens: Tokens, refresh_token: str, http: httpx.Client) -> Tokens:
    """Return new tokens for a refresh token. Raises StoreError."""
    issuer = discover(tokens.issuer, http)
    form = {
        "grant_type": "refresh_token",
        "refresh_token": refresh_token,
        "client_id": tokens.client_id,
    }
    answer = issuer.post("token_endpoint", form)
    if answer.status in TRANSIENT:
        raise ConnectionFailed(f"the issuer {issuer.url} answered {answer.reason}")
    if answer.status != 200:
        raise SignInFailed(
            f"the issuer {issuer.url} does not renew it ({answer.reason}): istore login"
        )
    return read_tokens(answer.members, tokens.issuer, tokens.client_id, before=refresh_token)


def end(tokens: Tokens, http: httpx.Client) -> None:
    """Tell the issuer that the tokens are not used any more (RFC 7009), if it can be told."""
    try:
        issuer = discover(tokens.issuer, http)
        if tokens.refresh_token is not None and issuer.find_endpoint("revocation_endpoint"):
            form = {"token": tokens.refresh_token, "client_id": tokens.client_id}
            issuer.post("revocation_endpoint", form)
    except StoreError:
        pass  # they are forgotten here, and end by themselves
