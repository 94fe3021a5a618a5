"""Browser sessions: started with a key, held by a cookie, and ended in every way."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update

from inference_store.access.credentials import Identity, hash_session_id
from inference_store.api import authentication
from inference_store.api.authentication import (
    COOKIE,
    FRESH_SECONDS,
    HEADER,
    WATCHED_SECONDS,
    WATCHING,
)
from inference_store.index import web_sessions
from inference_store.index.tables import web_session
from tests.integration.api.conftest import Api, MakeApp, make_client
from tests.settings import TOKEN
from tests.stopped_clock import StoppedClock

from .conftest import OPEN, SECRET, Keys

OWN = {"Sec-Fetch-Site": "same-origin", HEADER: "1"}
_HOST = "127.0.0.1"
_READER = {"role": "reader"}


class Browser:
    """Sends requests as the console does, with its session cookie.

    httpx sends no Secure cookie over plain HTTP, so this class keeps it.
    """

    def __init__(self, client: Api, id: str = "") -> None:
        self.client = client
        self.id = id

    async def sign_in(self, key: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        sent = OWN | {"Authorization": f"Bearer {key}"} | dict(headers or {})
        answer = await self.ask("POST", "/v1/session", sent)
        name, _, rest = answer.headers.get("set-cookie", "").partition("=")
        assert name in {"", COOKIE}
        self.id = rest.partition(";")[0] or self.id
        return answer

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] = OWN, body: Any = None
    ) -> httpx.Response:
        sent = dict(headers) | ({"Cookie": f"{COOKIE}={self.id}"} if self.id else {})
        return await self.client.request(method, path, headers=sent, json=body)

    async def status(self, path: str = "/v1/me", **headers: str) -> int:
        return (await self.ask("GET", path, OWN | headers)).status_code

    async def read_caller(self, headers: Mapping[str, str] = OWN) -> dict[str, Any]:
        return dict((await self.ask("GET", "/v1/me", headers)).json())

    async def change_session(self, **values: Any) -> None:
        """Change the row of the session, as only time does otherwise."""
        is_this_session = web_session.c.id_hash == hash_session_id(self.id)
        await self.client.execute(update(web_session).where(is_this_session).values(**values))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock by which what a replica has cached grows old."""
    stopped = StoppedClock()
    monkeypatch.setattr(authentication, "time", stopped)
    return stopped


@pytest.fixture
def browser(guarded: Api) -> Browser:
    return Browser(guarded)


@pytest.fixture
async def other_replica(make_app: MakeApp) -> AsyncIterator[Browser]:
    """A browser that uses another replica."""
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        yield Browser(client)


async def _count_sessions(api: Api) -> int:
    [number] = await api.fetch(select(func.count()).select_from(web_session))
    return int(number)


async def test_a_key_starts_a_session(keys: Keys, browser: Browser) -> None:
    key = await keys.make(_READER)
    before, hours = datetime.now(UTC), timedelta(hours=12)
    answer = await browser.sign_in(key)
    assert answer.status_code == 201
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert browser.id not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    caller = await browser.read_caller()
    assert (caller["name"], caller["rights"]) == (f"key:{key.split('_')[1]}", ["read"])
    assert caller["session"] == answer.json()
    expires_at = datetime.fromisoformat(caller["session"]["expires_at"])
    assert before + hours <= expires_at <= datetime.now(UTC) + hours
    assert (await keys.call(key, "GET", "/v1/me"))["session"] is None
    assert (await browser.ask("POST", "/v1/inferences/query", body={})).status_code == 200


async def test_stores_only_a_hash_of_the_id(browser: Browser, guarded: Api) -> None:
    await browser.sign_in(TOKEN)
    [row] = await guarded.fetch(select(web_session))
    assert row.id_hash == hash_session_id(browser.id)
    assert browser.id not in str(row)
    assert TOKEN not in str(row)


async def test_configured_token_starts_a_session(make_app: MakeApp, browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    assert (await browser.read_caller())["kind"] == "token"
    changed = make_app(auth="on", api_token="another-token-of-the-settings")
    async with make_client(changed) as client:
        assert await Browser(client, browser.id).status() == 401


async def test_requires_a_key_to_start(browser: Browser, client: Api) -> None:
    assert (await browser.ask("POST", "/v1/session")).status_code == 401
    assert (await browser.sign_in("wrong")).status_code == 401
    await browser.sign_in(TOKEN)
    # a session never extends itself
    assert (await browser.ask("POST", "/v1/session")).status_code == 401
    off = await client.ask("/v1/session", None, status=409, headers=OWN)
    assert off["type"] == "/docs/errors#conflict"
    assert await _count_sessions(client) == 1


async def test_the_id_is_new_at_each_sign_in(browser: Browser, guarded: Api) -> None:
    """An id that an attacker planted in the browser never becomes that of a session."""
    browser.id = planted = "p" * 43
    await browser.sign_in(TOKEN)
    first = browser.id
    await browser.sign_in(TOKEN)
    assert len({planted, first, browser.id}) == 3
    for id in (planted, first):
        assert await Browser(guarded, id).status() == 401
    assert await browser.status() == 200
    assert await _count_sessions(guarded) == 1


async def test_signing_out(browser: Browser, other_replica: Browser, clock: StoppedClock) -> None:
    await browser.sign_in(TOKEN)
    other_replica.id = browser.id
    assert await other_replica.status() == 200
    answer = await browser.ask("DELETE", "/v1/session")
    assert answer.status_code == 204
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await browser.status() == 401
    assert "ended" in (await browser.read_caller())["detail"]
    assert await _count_sessions(browser.client) == 0
    clock.now += FRESH_SECONDS
    assert await other_replica.status() == 401


async def test_session_ends_with_its_key(
    keys: Keys, browser: Browser, other_replica: Browser, clock: StoppedClock
) -> None:
    """Here at once, on another replica within two seconds, and sooner for a page that watches."""
    for end, body in (("revoke", None), ("rotate", {})):
        for seconds, watching in ((FRESH_SECONDS, {}), (WATCHED_SECONDS, {HEADER: WATCHING})):
            key = await keys.make(_READER)
            await browser.sign_in(key)
            other_replica.id = browser.id
            assert await other_replica.status() == await browser.status() == 200
            await keys.call(TOKEN, "POST", f"/v1/keys/{key.split('_')[1]}/{end}", body)
            assert await browser.status() == 401, end
            clock.now += seconds
            assert await other_replica.status(**watching) == 401, (end, watching)
            assert await other_replica.status() == 401, end


async def test_a_session_ends_with_the_old_text_of_its_key(keys: Keys, browser: Browser) -> None:
    key = await keys.make(_READER)
    await browser.sign_in(key)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    path = f"/v1/keys/{key.split('_')[1]}/rotate"
    await keys.call(TOKEN, "POST", path, {"old_works_until": later})
    assert await browser.status() == 200
    await keys.call(TOKEN, "POST", path, {})
    assert await browser.status() == 401


async def test_session_lasts_no_longer_than_its_key(keys: Keys, browser: Browser) -> None:
    at = datetime.now(UTC) + timedelta(minutes=10)
    session = (await browser.sign_in(await keys.make(_READER, expires_at=at))).json()
    assert datetime.fromisoformat(session["expires_at"]) == at
    assert datetime.fromisoformat(session["idle_until"]) == at


async def test_session_expires(browser: Browser) -> None:
    for name in ("idle_until", "expires_at"):
        await browser.sign_in(TOKEN)
        await browser.change_session(**{name: datetime.now(UTC) - timedelta(seconds=1)})
        assert await browser.status() == 401, name


async def test_use_extends_a_session_to_its_end(browser: Browser, clock: StoppedClock) -> None:
    await browser.sign_in(TOKEN)
    now = datetime.now(UTC)
    used = {"used_at": now - timedelta(minutes=50), "idle_until": now + timedelta(minutes=10)}
    await browser.change_session(**used)
    # a page that only watches does not extend it
    assert await browser.status(**{HEADER: WATCHING}) == 200
    stored = select(web_session.c.idle_until)
    assert await browser.client.fetch(stored) == [used["idle_until"]]
    clock.now += FRESH_SECONDS  # the cached session is stale
    assert await browser.status() == 200
    session = (await browser.read_caller())["session"]
    assert datetime.fromisoformat(session["idle_until"]) > now + timedelta(minutes=59)
    end = now + timedelta(minutes=20)
    await browser.change_session(**used, expires_at=end)
    clock.now += FRESH_SECONDS
    assert await browser.status() == 200
    session = (await browser.read_caller())["session"]
    assert datetime.fromisoformat(session["idle_until"]) == end


async def test_limits_sessions_per_caller(guarded: Api) -> None:
    most, lasting = web_sessions.MOST_OF_ONE, {"seconds": 60.0, "idle_seconds": 60.0}
    async with guarded.engine.begin() as connection:
        for name in [*(["key:someone"] * (most + 3)), "key:other"]:
            await web_sessions.start(connection, Identity(name), _HOST, **lasting)
    assert await _count_sessions(guarded) == most + 1


async def test_deletes_ended_sessions(browser: Browser, guarded: Api) -> None:
    await browser.sign_in(TOKEN)
    await browser.change_session(idle_until=datetime.now(UTC) - timedelta(seconds=1))
    other = Browser(guarded)
    await other.sign_in(TOKEN)
    assert await guarded.transact(web_sessions.delete_ended) == 1
    assert await other.status() == 200


async def test_the_cookie_alone_is_refused(browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    cases: list[tuple[str, dict[str, str]]] = [
        ("GET", {}),
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", OWN | {"Host": "evil.example"}),
        ("GET", {"Origin": "http://evil.example", "Host": "evil.example"}),
        ("GET", OWN | {"Host": "127.0.0.1:1"}),
        ("DELETE", {"Sec-Fetch-Site": "same-origin"}),
        ("DELETE", OWN | {"Host": "evil.example"}),
    ]
    for method, headers in cases:
        path = "/v1/models" if method == "GET" else "/v1/session"
        answer = await browser.ask(method, path, headers)
        refused = (answer.status_code, answer.json()["type"])
        assert refused == (401, "/docs/errors#unauthorized"), (method, headers)
        assert await browser.status() == 200, (method, headers)


async def test_a_foreign_page_signs_nobody_in_or_out(browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    for site in ("cross-site", "same-site"):
        for method in ("POST", "DELETE"):
            answer = await browser.ask(method, "/v1/session", OWN | {"Sec-Fetch-Site": site})
            assert answer.json()["type"] == "/docs/errors#foreign-request", (site, method)
        assert await browser.status() == 200, site


async def test_a_key_wins_over_the_cookie(keys: Keys, browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    key = await keys.make(_READER)
    headers = {"Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site"}
    caller = await browser.read_caller(headers)
    assert (caller["kind"], caller["session"]) == ("key", None)
    assert await browser.status(Authorization="Bearer wrong") == 401


async def test_other_origins_cannot_use_the_cookie(make_app: MakeApp) -> None:
    app = make_app(auth="on", api_token=TOKEN, api_cors_origins="*")
    async with make_client(app) as client:
        browser = Browser(client)
        await browser.sign_in(TOKEN)
        foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", HEADER: "1"}
        answer = await browser.ask("GET", "/v1/models", foreign)
        assert answer.status_code == 401
        assert "access-control-allow-credentials" not in answer.headers


async def test_start_and_end_are_in_the_audit(keys: Keys, browser: Browser) -> None:
    key = await keys.make(_READER)
    actor = f"key:{key.split('_')[1]}"
    await browser.sign_in(key)
    await browser.sign_in(TOKEN)
    await browser.ask("DELETE", "/v1/session")
    entries = (await keys.call(TOKEN, "GET", "/v1/audit"))["items"][::-1]
    events = [(entry["actor"], entry["action"], entry["client"]) for entry in entries]
    assert events == [
        (name, action, "127.0.0.1")
        for name in (actor, "token")
        for action in ("session_started", "session_ended")
    ]
    labels = [entry["detail"]["session"] for entry in entries]
    assert labels[0] == labels[1] != labels[2] == labels[3]


async def test_limits_made_up_ids_but_not_ids_in_use(make_app: MakeApp) -> None:
    app = make_app(auth="on", api_token=TOKEN, api_failed_tokens_per_minute=3)
    async with make_client(app) as client:
        browser = Browser(client)
        await browser.sign_in(TOKEN)
        assert await browser.status() == 200
        statuses = [await Browser(client, f"made-up-{n}").status() for n in range(5)]
        assert statuses == [401, 401, 401, 429, 429]
        assert await browser.status() == 200


@pytest.mark.usefixtures("two_models")
async def test_the_rights_of_the_key_are_those_of_the_session(keys: Keys, browser: Browser) -> None:
    await browser.sign_in(await keys.make({"role": "reader", "model_id": OPEN}))
    models = (await browser.ask("GET", "/v1/models")).json()["items"]
    assert [model["model_id"] for model in models] == [OPEN]
    assert await browser.status(f"/v1/models/{SECRET}") == 404
    assert (await browser.ask("GET", "/v1/audit")).status_code == 403
