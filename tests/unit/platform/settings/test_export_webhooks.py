"""Where webhooks may go: what is checked is what is connected to, however a URL is written."""

import base64
import random
from typing import Final
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError
from yarl import URL

from inference_store.platform.settings import ApiSettings, RetentionSettings
from inference_store.platform.settings.web_origins import MOST_CHARACTERS, read_origin, read_origins
from tests.settings import make_settings

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LISTED: Final = "https://hooks.example"


def test_the_origin_of_a_url() -> None:
    for url, origin in (
        ("https://hooks.example", LISTED),
        ("https://hooks.example/", LISTED),
        ("HTTPS://Hooks.Example:443/a?b=c", LISTED),
        ("https://hooks.example?token=a@b/c://d", LISTED),
        ("https://hooks.example/@evil.example", LISTED),
        ("https://hooks.example/%2e%2e/%40", LISTED),
        ("http://hooks.example:443/", "http://hooks.example:443"),
        ("http://hooks.example:80/", "http://hooks.example"),
        ("https://hooks.example:8443/", "https://hooks.example:8443"),
        ("https://[::1]:8443/x", "https://[::1]:8443"),
        ("https://[0:0:0:0:0:0:0:1]/", "https://[::1]"),
        ("https://xn--hks-5qa.example/", "https://xn--hks-5qa.example"),
        ("https://127.1/", "https://127.1"),
        ("https://2130706433/", "https://2130706433"),
    ):
        assert read_origin(url) == origin


def test_what_readers_of_urls_may_understand_differently_is_refused(
    subtests: pytest.Subtests,
) -> None:
    for url in (
        *("", "hooks.example", "//hooks.example/", "https:/hooks.example"),
        "https:///hooks.example",
        *("ftp://hooks.example/", "file:///etc/passwd", "gopher://hooks.example/", "javascript:0"),
        *("https://u@hooks.example/", "https://u:p@hooks.example/", "https://@hooks.example/"),
        "https://hooks.example@evil.example/",
        "https://hooks.example%40evil.example/",
        r"https://hooks.example\@evil.example/",
        r"https://evil.example\hooks.example",
        *("https://hooks.example#@evil.example/", "https://hooks.example/#x"),
        *("https://hooks.example:0/", "https://hooks.example:/", "https://hooks.example:0443/"),
        *("https://hooks.example:65536/", "https://hooks.example:-1/", "https://hooks.example:1e3"),
        *("https://hooks.example:443:443/", "https://:443/", "https://?x", "https://"),
        *("https://höoks.example/", "https://hooks。example/", "https://hooks.example/ü"),
        *("https://ⓔxample.com/", "https://hooks.example／evil/", "https://hooks.example\u202e/"),
        *("https://ho oks.example/", " https://hooks.example/", "https://hooks.example/ "),
        *("https://hooks.example/\n", "https://hooks.example\r\nHost: x/"),
        "https://hooks.example\0",
        *("https://hooks.example\t/", "https://ho\toks.example/", "https://hooks..example/"),
        *(
            "https://hooks.example./",
            "https://.hooks.example/",
            "https://-hooks.example/",
            "https://hooks.example-/",
        ),
        *("https://[::1/", "https://::1/", "https://[::g]/", "https://[fe80::1%25eth0]/"),
        *("https://[::ffff:127.0.0.1.5]/", "https://[]/", "https://[hooks.example]/"),
        *("https://%68ooks.example/", "https://hooks.example%00/", "https://hooks_example/"),
        *("https://hooks.example/<", 'https://hooks.example/"', "https://hooks.example/{}"),
        LISTED + "/" + "a" * MOST_CHARACTERS,
    ):
        with subtests.test(url):
            with pytest.raises(ValueError, match=r".") as refused:
                read_origin(url)
            assert "u:p" not in str(refused.value)


_PIECES = (
    *("https://", "http://", "HTTPS://", "hooks.example", "evil.example", "127.0.0.1", "[::1]"),
    *("@", ":", "/", "//", "?", "#", "\\", "%40", "%2f", "%00", ".", "..", "443", "80", "8443"),
    *("a", *" \t\n\r\0。／＠ö\u202e[];&=*_"),
)


def test_whatever_is_accepted_is_connected_to_as_it_was_read() -> None:
    """By aiohttp, whose reader of URLs is yarl, and by Python's own, for URLs that are made up."""
    random.seed(20)
    accepted = 0
    for _ in range(20_000):
        begin = "https://hooks.example" if random.random() < 0.5 else ""
        url = begin + "".join(random.choices(_PIECES, k=random.randint(1, 6)))
        try:
            origin = read_origin(url)
        except ValueError:
            continue
        accepted += 1
        connected, parts = URL(url, encoded=True), urlsplit(url)
        listed = URL(origin)
        assert connected.user is connected.password is parts.username is parts.password is None, url
        assert connected.scheme == parts.scheme == listed.scheme, url
        assert connected.host == parts.hostname == listed.host, url
        assert connected.port == listed.port, url
        assert parts.port in {None, listed.port}, url
    assert accepted > 300


def test_a_list_of_origins() -> None:
    listed = " https://hooks.example ,,http://127.0.0.1:8081,HTTPS://A.example:443"
    assert read_origins(listed) == {LISTED, "http://127.0.0.1:8081", "https://a.example"}
    assert read_origins("") == frozenset()


def test_what_is_no_origin_is_refused_at_the_start(subtests: pytest.Subtests) -> None:
    for entry in ("hooks.example", "https://hooks.example/", "*", f"{LISTED}?a"):
        refused = pytest.raises(ValidationError, match="entry 2 is no origin")
        with subtests.test(entry), refused:
            make_settings(ApiSettings, export_webhook_origins=f"{LISTED},{entry}")


def test_webhooks_that_nobody_could_check_are_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="EXPORT_WEBHOOK_SECRET is not"):
        make_settings(RetentionSettings, export_webhook_origins=LISTED)
    settings = make_settings(
        RetentionSettings, export_webhook_origins=LISTED, export_webhook_secret=SECRET
    )
    assert settings.webhook_keys == (base64.b64decode(SECRET.removeprefix("whsec_")),)
    make_settings(ApiSettings, export_webhook_origins=LISTED)  # the api needs none


def test_a_secret_that_could_be_guessed_is_refused_and_not_shown(subtests: pytest.Subtests) -> None:
    for secret in (
        SECRET.removeprefix("whsec_"),
        "whsec_",
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_!!!!",
        f"{SECRET} short",
    ):
        with subtests.test(secret):
            with pytest.raises(ValidationError, match="openssl rand") as refused:
                make_settings(RetentionSettings, export_webhook_secret=secret)
            assert SECRET not in str(refused.value)
