"""The device flow: a code that is entered in a browser, on any device (RFC 8628)."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from inference_store_client.errors import ConnectionFailed, SignInFailed, UnexpectedAnswer

from .issuer import TRANSIENT, Issuer, IssuerAnswer, check_url
from .tokens import Tokens, read_tokens

_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_DEFAULT_INTERVAL: Final = 5.0
_SLOWER_SECONDS: Final = 5.0
_MOST_SECONDS: Final = 3600.0
_MOST_INTERVAL: Final = 60.0


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What people enter, and where; and what the client asks with meanwhile."""

    user_code: str
    url: str
    whole_url: str | None
    """Has the code already."""
    device_code: str = field(repr=False)
    seconds: float
    interval: float


def request_code(issuer: Issuer, client_id: str, scopes: str) -> DeviceCode:
    """Ask the issuer for a code. Raises StoreError."""
    form = {"client_id": client_id, "scope": scopes}
    answer = issuer.post("device_authorization_endpoint", form)
    if answer.status != 200:
        raise SignInFailed(f"the issuer {issuer.url} gives no code: {answer.reason}")
    return _read_code(answer.members, issuer)


def _read_code(members: Mapping[str, Any], issuer: Issuer) -> DeviceCode:
    texts = [members.get(name) for name in ("device_code", "user_code", "verification_uri")]
    if not all(isinstance(text, str) and 0 < len(text) < 4096 for text in texts):
        raise UnexpectedAnswer(f"the issuer {issuer.url} gave no code")
    device_code, user_code, url = map(str, texts)
    whole = members.get("verification_uri_complete")
    return DeviceCode(
        user_code=user_code,
        url=check_url(url, "the page of the code"),
        whole_url=check_url(whole, "the page of the code") if isinstance(whole, str) else None,
        device_code=device_code,
        seconds=_read_seconds(members.get("expires_in"), _MOST_SECONDS, _MOST_SECONDS),
        interval=_read_seconds(members.get("interval"), _DEFAULT_INTERVAL, _MOST_INTERVAL),
    )


def _read_seconds(value: object, default: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return default
    return min(float(value), most)


def wait_for_tokens(
    issuer: Issuer,
    client_id: str,
    code: DeviceCode,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Tokens:
    """Ask until somebody has entered the code. Raises SignInFailed."""
    form = {"grant_type": _GRANT, "device_code": code.device_code, "client_id": client_id}
    ends_at, interval = clock() + code.seconds, max(code.interval, 1.0)
    while clock() + interval < ends_at:
        sleep(interval)
        answer = _ask(issuer, form)
        if answer is not None and answer.status == 200:
            return read_tokens(answer.members, issuer.url, client_id)
        interval = _find_interval(answer, interval, issuer)
    raise SignInFailed("the code has ended before anybody entered it: istore login")


def _ask(issuer: Issuer, form: Mapping[str, str]) -> IssuerAnswer | None:
    """Return the issuer's answer; None: it cannot be reached now."""
    try:
        answer = issuer.post("token_endpoint", form)
    except ConnectionFailed:
        return None
    return None if answer.status in TRANSIENT and not answer.error else answer


def _find_interval(answer: IssuerAnswer | None, interval: float, issuer: Issuer) -> float:
    """Return how long to wait before the next question. Raises SignInFailed if there is none."""
    if answer is None:
        return min(2 * interval, _MOST_INTERVAL)
    match answer.error:
        case "authorization_pending":
            return interval
        case "slow_down":
            return interval + _SLOWER_SECONDS
        case "access_denied":
            raise SignInFailed("the sign-in was refused in the browser")
        case "expired_token":
            raise SignInFailed("the code has ended before anybody entered it: istore login")
    raise SignInFailed(f"the issuer {issuer.url} refuses the code: {answer.reason}")
