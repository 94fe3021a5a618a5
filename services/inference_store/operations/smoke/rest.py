"""A client of the api."""

import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import orjson

_TIMEOUT_SECONDS = 30.0


class Refused(Exception):
    """The api answered with an error, or did not answer (`status` 0)."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Rest:
    """The api at one address. Never prints its token."""

    address: str
    token: str | None = field(repr=False, default=None)
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: object = None) -> bytes:
        """Return the answer's bytes. Raises Refused with the api's own words."""
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        else:  # without access control an api answers to no other name
            headers["Host"] = "localhost"
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else orjson.dumps(body),
            headers=headers,
        )
        try:
            with urllib.request.urlopen(
                request, timeout=_TIMEOUT_SECONDS, context=self.tls
            ) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            words = error.read().decode("utf-8", "replace")
            raise Refused(f"{method} {path} answered {error.code}: {words}", error.code) from error
        except OSError as error:
            raise Refused(f"{method} {path}: {self.address} does not answer: {error}") from error
