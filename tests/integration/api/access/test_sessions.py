"""Browser sessions: started with a key, held by a cookie, and ended in every way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access.sessions import Identity, hash_id
from inference_store.api.access import fresh_cache
from inference_store.api.access.fresh_cache import FRESH_SECONDS, WATCHED_SECONDS
from inference_store.api.access.session_cookie import COOKIE, HEADER, WATCHING
from inference_store.index import web_sessions
from inference_store.index.tables import web_session
from tests.integration.api.conftest import MakeApp, make_client
from tests.settings import TOKEN
from tests.stopped_clock import StoppedClock

from .conftest import OPEN, SECRET, Keys

OWN = {"Sec-Fetch-Site": "same-origin", HEADER: "1"}
_HOST = "127.0.0.1"


class Browser:
    """Sends requests as the console does, with its session cookie.

    httpx sends no Secure cookie over plain HTTP, so this class keeps it.
    """

    def __init__(self, client: httpx.AsyncClient, id: str = "") -> None:
        self._client = client
        self.id = id

    async def sign_in(self, key: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Start a session."""
        sent = OWN | {"Authorization": f"Bearer {key}"} | dict(headers or {})
        answer = await self.ask("POST", "/v1/session", sent)
        name, _, rest = answer.headers.get("set-cookie", "").partition("=")
        assert name in {"", COOKIE}
        self.id = rest.partition(";")[0] or self.id
        return answer

    async def ask(
        self, method: str, path: str, headers: Mapping[str, str] = OWN, body: Any = None
    ) -> httpx.Response:
        """Send a request with the cookie."""
        sent = dict(headers) | ({"Cookie": f"{COOKIE}={self.id}"} if self.id else {})
        return await self._client.request(method, path, headers=sent, json=body)

    async def status(self, path: str = "/v1/me", **headers: str) -> int:
        """Return the status of an answer to a GET."""
        return (await self.ask("GET", path, OWN | headers)).status_code


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock by which what a replica has cached grows old."""
    stopped = StoppedClock()
    monkeypatch.setattr(fresh_cache, "time", stopped)
    return stopped


@pytest.fixture
def browser(guarded: httpx.AsyncClient) -> Browser:
    return Browser(guarded)


@pytest.fixture
async def other_replica(make_app: MakeApp) -> AsyncIterator[Browser]:
    """A browser that uses another replica."""
    async with make_client(make_app(auth="on", api_token=TOKEN)) as client:
        yield Browser(client)


async def _update_session(engine: AsyncEngine, browser: Browser, **values: Any) -> None:
    is_this_session = web_session.c.id_hash == hash_id(browser.id)
    async with engine.begin() as connection:
        await connection.execute(update(web_session).where(is_this_session).values(**values))


async def _count_sessions(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return await connection.scalar(select(func.count()).select_from(web_session)) or 0


async def test_a_key_starts_a_session(keys: Keys, browser: Browser) -> None:
    key = await keys.make({"role": "reader"})
    answer = await browser.sign_in(key)
    assert answer.status_code == 201
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert browser.id not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    caller = (await browser.ask("GET", "/v1/me")).json()
    assert (caller["name"], caller["rights"]) == (f"key:{key.split('_')[1]}", ["read"])
    assert caller["session"] == answer.json()
    remaining = datetime.fromisoformat(caller["session"]["expires_at"]) - datetime.now(UTC)
    assert timedelta(hours=11.9) < remaining <= timedelta(hours=12)
    assert (await keys.ask(key, "GET", "/v1/me")).json()["session"] is None
    assert (await browser.ask("POST", "/v1/inferences/query", body={})).status_code == 200


async def test_stores_only_a_hash_of_the_id(browser: Browser, engine: AsyncEngine) -> None:
    await browser.sign_in(TOKEN)
    async with engine.connect() as connection:
        row = (await connection.execute(select(web_session))).one()
    assert row.id_hash == hash_id(browser.id)
    assert browser.id not in str(row)
    assert TOKEN not in str(row)


async def test_configured_token_starts_a_session(make_app: MakeApp, browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    assert (await browser.ask("GET", "/v1/me")).json()["kind"] == "token"
    async with make_client(
        make_app(auth="on", api_token="another-token-of-the-settings")
    ) as client:
        assert await Browser(client, browser.id).status() == 401


async def test_requires_a_key_to_start(
    browser: Browser, client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    assert (await browser.ask("POST", "/v1/session")).status_code == 401
    assert (await browser.sign_in("wrong")).status_code == 401
    await browser.sign_in(TOKEN)
    # a session never extends itself
    assert (await browser.ask("POST", "/v1/session")).status_code == 401
    off = await client.post("/v1/session", headers=OWN)
    assert (off.status_code, off.json()["type"]) == (409, "/docs/errors#conflict")
    assert await _count_sessions(engine) == 1


async def test_the_id_is_new_at_each_sign_in(browser: Browser, engine: AsyncEngine) -> None:
    """An id that an attacker planted in the browser never becomes that of a session."""
    browser.id = planted = "p" * 43
    await browser.sign_in(TOKEN)
    first = browser.id
    await browser.sign_in(TOKEN)
    assert len({planted, first, browser.id}) == 3
    for id in (planted, first):
        browser.id, current = id, browser.id
        assert await browser.status() == 401
        browser.id = current
    assert await browser.status() == 200
    assert await _count_sessions(engine) == 1


async def test_signing_out(
    browser: Browser, other_replica: Browser, engine: AsyncEngine, clock: StoppedClock
) -> None:
    await browser.sign_in(TOKEN)
    other_replica.id = browser.id
    assert await other_replica.status() == 200
    answer = await browser.ask("DELETE", "/v1/session")
    assert answer.status_code == 204
    assert f'{COOKIE}=""' in answer.headers["set-cookie"]
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert await browser.status() == 401
    assert "ended" in (await browser.ask("GET", "/v1/me")).json()["detail"]
    assert await _count_sessions(engine) == 0
    clock.now += FRESH_SECONDS
    assert await other_replica.status() == 401


async def _revoke(keys: Keys, id: str) -> None:
    await keys.ask(TOKEN, "POST", f"/v1/keys/{id}/revoke")


async def _rotate(keys: Keys, id: str) -> None:
    await keys.ask(TOKEN, "POST", f"/v1/keys/{id}/rotate", {})


@pytest.mark.parametrize("end", [_revoke, _rotate])
async def test_session_ends_with_its_key(
    keys: Keys,
    browser: Browser,
    other_replica: Browser,
    clock: StoppedClock,
    end: Callable[[Keys, str], Awaitable[None]],
) -> None:
    """The session ends here at once, and on another replica within two seconds."""
    key = await keys.make({"role": "reader"})
    await browser.sign_in(key)
    other_replica.id = browser.id
    assert await other_replica.status() == await browser.status() == 200
    await end(keys, key.split("_")[1])
    assert await browser.status() == 401
    clock.now += FRESH_SECONDS
    assert await other_replica.status() == 401


async def test_a_page_that_watches_hears_sooner_of_a_key_revoked_elsewhere(
    keys: Keys, browser: Browser, other_replica: Browser, clock: StoppedClock
) -> None:
    key = await keys.make({"role": "reader"})
    await browser.sign_in(key)
    other_replica.id = browser.id
    assert await other_replica.status() == 200
    await _revoke(keys, key.split("_")[1])
    clock.now += WATCHED_SECONDS
    assert await other_replica.status(**{HEADER: WATCHING}) == 401
    assert await other_replica.status() == 401


async def test_session_ends_when_the_old_text_of_a_rotated_key_ends(
    keys: Keys, browser: Browser
) -> None:
    key = await keys.make({"role": "reader"})
    await browser.sign_in(key)
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    path = f"/v1/keys/{key.split('_')[1]}/rotate"
    await keys.ask(TOKEN, "POST", path, {"old_works_until": later})
    assert await browser.status() == 200
    await keys.ask(TOKEN, "POST", path, {})
    assert await browser.status() == 401


async def test_session_lasts_no_longer_than_its_key(keys: Keys, browser: Browser) -> None:
    at = datetime.now(UTC) + timedelta(minutes=10)
    answer = await browser.sign_in(await keys.make({"role": "reader"}, expires_at=at))
    session = answer.json()
    assert datetime.fromisoformat(session["expires_at"]) == at
    assert datetime.fromisoformat(session["idle_until"]) == at


@pytest.mark.parametrize("name", ["idle_until", "expires_at"])
async def test_session_expires(engine: AsyncEngine, browser: Browser, name: str) -> None:
    await browser.sign_in(TOKEN)
    await _update_session(engine, browser, **{name: datetime.now(UTC) - timedelta(seconds=1)})
    assert await browser.status() == 401


async def test_use_extends_the_session_until_it_expires(
    engine: AsyncEngine, browser: Browser, clock: StoppedClock
) -> None:
    await browser.sign_in(TOKEN)
    now = datetime.now(UTC)
    long_ago, soon = now - timedelta(minutes=50), now + timedelta(minutes=10)
    await _update_session(engine, browser, used_at=long_ago, idle_until=soon)
    assert await browser.status() == 200
    session = (await browser.ask("GET", "/v1/me")).json()["session"]
    assert datetime.fromisoformat(session["idle_until"]) > now + timedelta(minutes=59)
    end = now + timedelta(minutes=20)
    await _update_session(engine, browser, used_at=long_ago, idle_until=soon, expires_at=end)
    clock.now += FRESH_SECONDS  # the cached session is stale
    assert await browser.status() == 200
    session = (await browser.ask("GET", "/v1/me")).json()["session"]
    assert datetime.fromisoformat(session["idle_until"]) == end


async def test_watching_does_not_extend_the_session(engine: AsyncEngine, browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    now = datetime.now(UTC)
    long_ago, soon = now - timedelta(minutes=50), now + timedelta(minutes=10)
    await _update_session(engine, browser, used_at=long_ago, idle_until=soon)
    assert await browser.status(**{HEADER: WATCHING}) == 200
    async with engine.connect() as connection:
        assert await connection.scalar(select(web_session.c.idle_until)) == soon


async def test_limits_sessions_per_caller(engine: AsyncEngine) -> None:
    identity = Identity("key:someone")
    async with engine.begin() as connection:
        for _ in range(web_sessions.MOST_OF_ONE + 3):
            await web_sessions.start(connection, identity, _HOST, seconds=60.0, idle_seconds=60.0)
        await web_sessions.start(
            connection, Identity("key:other"), _HOST, seconds=60.0, idle_seconds=60.0
        )
    assert await _count_sessions(engine) == web_sessions.MOST_OF_ONE + 1


async def test_deletes_ended_sessions(
    engine: AsyncEngine, browser: Browser, guarded: httpx.AsyncClient
) -> None:
    await browser.sign_in(TOKEN)
    await _update_session(engine, browser, idle_until=datetime.now(UTC) - timedelta(seconds=1))
    other = Browser(guarded)
    await other.sign_in(TOKEN)
    async with engine.begin() as connection:
        assert await web_sessions.delete_ended(connection) == 1
    assert await other.status() == 200


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("GET", {"Sec-Fetch-Site": "cross-site"}),
        ("GET", {"Sec-Fetch-Site": "same-site"}),
        ("GET", {"Sec-Fetch-Site": "none"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"}),
        ("GET", {"Origin": "https://evil.example"}),
        ("GET", OWN | {"Host": "evil.example"}),
        ("GET", {"Origin": "http://evil.example", "Host": "evil.example"}),
        ("GET", OWN | {"Host": "127.0.0.1:1"}),
        ("DELETE", {"Sec-Fetch-Site": "same-origin"}),
        ("DELETE", {"Origin": "http://127.0.0.1"}),
        ("DELETE", OWN | {"Host": "evil.example"}),
    ],
)
async def test_the_cookie_alone_is_refused(
    browser: Browser, method: str, headers: dict[str, str]
) -> None:
    await browser.sign_in(TOKEN)
    path = "/v1/models" if method == "GET" else "/v1/session"
    answer = await browser.ask(method, path, headers)
    assert (answer.status_code, answer.json()["type"]) == (401, "/docs/errors#unauthorized")
    assert await browser.status() == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_foreign_page_signs_nobody_in_or_out(browser: Browser, site: str) -> None:
    await browser.sign_in(TOKEN)
    for method in ("POST", "DELETE"):
        answer = await browser.ask(method, "/v1/session", OWN | {"Sec-Fetch-Site": site})
        assert answer.json()["type"] == "/docs/errors#foreign-request"
    assert await browser.status() == 200


async def test_a_key_wins_over_the_cookie(keys: Keys, browser: Browser) -> None:
    await browser.sign_in(TOKEN)
    key = await keys.make({"role": "reader"})
    headers = {"Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site"}
    caller = (await browser.ask("GET", "/v1/me", headers)).json()
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
    key = await keys.make({"role": "reader"})
    actor = f"key:{key.split('_')[1]}"
    await browser.sign_in(key)
    await browser.sign_in(TOKEN)
    await browser.ask("DELETE", "/v1/session")
    entries = (await keys.ask(TOKEN, "GET", "/v1/audit")).json()["items"]
    events = [(entry["actor"], entry["action"], entry["client"]) for entry in entries[::-1]]
    assert events == [
        (actor, "session_started", "127.0.0.1"),
        (actor, "session_ended", "127.0.0.1"),
        ("token", "session_started", "127.0.0.1"),
        ("token", "session_ended", "127.0.0.1"),
    ]
    labels = [entry["detail"]["session"] for entry in entries[::-1]]
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
