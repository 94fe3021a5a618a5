"""Tokens of an issuer, as values."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from inference_store_client.errors import SettingsError

_DEFAULT_SECONDS: Final = 300
_MOST_SECONDS: Final = 10 * 365 * 24 * 3600
_MOST_CHARACTERS: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Tokens:
    """What an issuer gave to somebody who signed in."""

    issuer: str
    client_id: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    expires_at: float
    """In seconds since 1970."""

    def is_ending(self, within_seconds: float) -> bool:
        """Return whether the access token ends within so many seconds."""
        return time.time() + within_seconds >= self.expires_at

    def to_json(self) -> dict[str, Any]:
        """Return the members, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, members: Any) -> Self:
        """Return what `to_json` gave. Raises ValueError for anything else."""
        try:
            tokens = cls(**members)
        except TypeError as wrong:
            raise ValueError(f"it is no sign-in: {wrong}") from None
        texts = (tokens.issuer, tokens.client_id, tokens.access_token, tokens.refresh_token or "")
        is_number = isinstance(tokens.expires_at, int | float)
        if not (is_number and all(isinstance(text, str) for text in texts)):
            raise ValueError("it is no sign-in")
        return tokens


def read_tokens(
    answer: Mapping[str, Any], issuer: str, client_id: str, *, before: str | None = None
) -> Tokens:
    """Return the tokens of an answer; `before`: the refresh token if it names no new one.

    Raises SettingsError for what is no bearer token.
    """
    access, refresh = answer.get("access_token"), answer.get("refresh_token")
    if str(answer.get("token_type", "")).lower() != "bearer" or not _is_token(access):
        raise SettingsError(f"the issuer {issuer} gave no bearer token")
    seconds = answer.get("expires_in")
    is_number = isinstance(seconds, int | float) and 0 < seconds < _MOST_SECONDS
    expires_at = time.time() + (seconds if is_number else _DEFAULT_SECONDS)  # type: ignore[operator]
    chosen = refresh if isinstance(refresh, str) and _is_token(refresh) else before
    return Tokens(issuer, client_id, str(access), chosen, expires_at)


def _is_token(text: object) -> bool:
    """Return whether a header can hold it."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= _MOST_CHARACTERS
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )
