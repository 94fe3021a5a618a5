"""When the cookie of a session counts."""

import pytest
from starlette.requests import Request
from starlette.responses import Response

from inference_store.api.authentication import COOKIE, HEADER, find_session_id, set_cookie
from inference_store.inference.errors import Unauthorized

_OWN = {"Sec-Fetch-Site": "same-origin"}
_OURS = {HEADER: "1"}


def make_request(method: str, **headers: str) -> Request:
    """A request with the cookie."""
    sent = {"Host": "store.example:8443", "Cookie": f"other=1; {COOKIE}=abc"} | headers
    pairs = [(name.lower().encode(), value.encode()) for name, value in sent.items()]
    return Request({"type": "http", "method": method, "headers": pairs})


def test_it_counts_for_its_own_page() -> None:
    for method, headers in (
        ("GET", _OWN),
        ("HEAD", _OWN),
        ("GET", {"Origin": "https://store.example:8443"}),
        ("GET", {"Origin": "https://STORE.example:8443"}),
        ("GET", _OWN | {"Origin": "https://behind.a.proxy.example"}),
        ("POST", _OWN | _OURS),
        ("DELETE", _OURS | {"Origin": "https://store.example:8443"}),
    ):
        assert find_session_id(make_request(method, **headers)) == "abc", method


def test_it_counts_for_no_other_page(subtests: pytest.Subtests) -> None:
    """Other headers do not matter: only a browser says where a page is from."""
    for method in ("GET", "POST"):
        for site in ("cross-site", "same-site", "none", "", "Same-Origin", "x"):
            with subtests.test(method=method):
                headers = {"Sec-Fetch-Site": site, "Origin": "https://store.example:8443"} | _OURS
                with pytest.raises(Unauthorized):
                    find_session_id(make_request(method, **headers))


def test_without_fetch_metadata_the_origin_must_be_its_own(subtests: pytest.Subtests) -> None:
    for origin in (
        None,
        "null",
        "",
        "https://evil.example",
        "https://store.example",
        "https://store.example:8443.evil.example",
        "https://evil.example/store.example:8443",
    ):
        with subtests.test(origin=origin):
            headers = _OURS if origin is None else _OURS | {"Origin": origin}
            with pytest.raises(Unauthorized):
                find_session_id(make_request("GET", **headers))


def test_a_change_needs_our_header(subtests: pytest.Subtests) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        with subtests.test(method), pytest.raises(Unauthorized, match=HEADER):
            find_session_id(make_request(method, **_OWN))
    for value in ("", "0", "true"):
        with subtests.test(value), pytest.raises(Unauthorized, match="without the header"):
            find_session_id(make_request("POST", **_OWN, **{HEADER: value}))


def test_with_a_key_or_without_a_cookie_there_is_no_session() -> None:
    foreign = {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer x"}
    assert find_session_id(make_request("POST", **foreign)) is None
    assert find_session_id(make_request("GET", Cookie="other=1")) is None
    assert find_session_id(make_request("GET", Cookie=f"{COOKIE}=")) is None


def test_scripts_and_other_hosts_do_not_get_it() -> None:
    answer = Response()
    set_cookie(answer, "abc")
    assert answer.headers["set-cookie"] == f"{COOKIE}=abc; HttpOnly; Path=/; SameSite=lax; Secure"
    assert COOKIE.startswith("__Host-")
