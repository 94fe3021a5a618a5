"""When the cookie of a session counts."""

import pytest
from starlette.requests import Request
from starlette.responses import Response

from inference_store.api.access.session_cookie import (
    COOKIE,
    HEADER,
    find_session_id,
    set_cookie,
)
from inference_store.inference.errors import Unauthorized

_OWN = {"Sec-Fetch-Site": "same-origin"}
_OURS = {HEADER: "1"}


def make_request(method: str, **headers: str) -> Request:
    """A request with the cookie."""
    sent = {"Host": "store.example:8443", "Cookie": f"other=1; {COOKIE}=abc"} | headers
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    return Request({"type": "http", "method": method, "headers": pairs})


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", _OWN),
        ("HEAD", _OWN),
        ("GET", {"Origin": "https://store.example:8443"}),
        ("GET", {"Origin": "https://STORE.example:8443"}),
        ("GET", _OWN | {"Origin": "https://behind.a.proxy.example"}),
        ("POST", _OWN | _OURS),
        ("DELETE", _OURS | {"Origin": "https://store.example:8443"}),
    ],
)
def test_it_counts_for_its_own_page(method: str, headers: dict[str, str]) -> None:
    assert find_session_id(make_request(method, **headers)) == "abc"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", "", "Same-Origin", "x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_it_counts_for_no_other_page(method: str, site: str) -> None:
    """Other headers do not matter: only a browser says where a page is from."""
    headers = {"Sec-Fetch-Site": site, "Origin": "https://store.example:8443"} | _OURS
    with pytest.raises(Unauthorized):
        find_session_id(make_request(method, **headers))


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "",
        "https://evil.example",
        "https://store.example",
        "https://store.example:8443.evil.example",
        "https://evil.example/store.example:8443",
    ],
)
def test_without_fetch_metadata_the_origin_must_be_its_own(origin: str | None) -> None:
    headers = _OURS if origin is None else _OURS | {"Origin": origin}
    with pytest.raises(Unauthorized):
        find_session_id(make_request("GET", **headers))


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_needs_our_header(method: str) -> None:
    with pytest.raises(Unauthorized, match=HEADER):
        find_session_id(make_request(method, **_OWN))


def test_a_key_or_token_has_precedence() -> None:
    foreign = {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer x"}
    assert find_session_id(make_request("POST", **foreign)) is None


def test_without_a_cookie_there_is_no_session() -> None:
    assert find_session_id(make_request("GET", Cookie="other=1")) is None
    assert find_session_id(make_request("GET", Cookie=f"{COOKIE}=")) is None


def test_scripts_and_other_hosts_do_not_get_it() -> None:
    answer = Response()
    set_cookie(answer, "abc")
    assert answer.headers["set-cookie"].split("; ") == [
        f"{COOKIE}=abc",
        "HttpOnly",
        "Path=/",
        "SameSite=lax",
        "Secure",
    ]
    assert COOKIE.startswith("__Host-")


@pytest.mark.parametrize("value", ["", "0", "true"])
def test_a_change_needs_the_value_of_the_header(value: str) -> None:
    with pytest.raises(Unauthorized, match="without the header"):
        find_session_id(make_request("POST", **_OWN, **{HEADER: value}))
