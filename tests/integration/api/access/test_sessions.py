"""Keys, and the browser sessions that they start: made, used, and ended in every way."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text, update

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
from inference_store.index.tables import api_key, web_session
from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.polling import until
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
    assert COOKIE.startswith("__Host-")
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


async def test_stores_only_a_hash_of_the_id_and_accepts_the_token_of_the_settings(
    browser: Browser, guarded: Api, make_app: MakeApp
) -> None:
    await browser.sign_in(TOKEN)
    [row] = await guarded.fetch(select(web_session))
    assert row.id_hash == hash_session_id(browser.id)
    assert browser.id not in str(row)
    assert TOKEN not in str(row)
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


async def test_a_session_lasts_no_longer_than_its_key_and_expires(
    keys: Keys, browser: Browser
) -> None:
    at = datetime.now(UTC) + timedelta(minutes=10)
    session = (await browser.sign_in(await keys.make(_READER, expires_at=at))).json()
    assert datetime.fromisoformat(session["expires_at"]) == at
    assert datetime.fromisoformat(session["idle_until"]) == at
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


async def test_the_cookie_alone_is_refused_and_a_key_wins_over_it(
    browser: Browser, keys: Keys
) -> None:
    await browser.sign_in(TOKEN)
    cases: list[tuple[str, dict[str, str]]] = [
        ("GET", {}),
        ("GET", {"Origin": "http://evil.example", "Host": "evil.example"}),
        ("GET", OWN | {"Host": "127.0.0.1:1"}),
        ("DELETE", OWN | {"Host": "evil.example"}),
    ]
    for method, headers in cases:
        path = "/v1/models" if method == "GET" else "/v1/session"
        answer = await browser.ask(method, path, headers)
        refused = (answer.status_code, answer.json()["type"])
        assert refused == (401, "/docs/errors#unauthorized"), (method, headers)
        assert await browser.status() == 200, (method, headers)
    for site in ("cross-site", "same-site"):
        for method in ("POST", "DELETE"):
            answer = await browser.ask(method, "/v1/session", OWN | {"Sec-Fetch-Site": site})
            assert answer.json()["type"] == "/docs/errors#foreign-request", (site, method)
        assert await browser.status() == 200, site
    key = await keys.make(_READER)
    both = {"Authorization": f"Bearer {key}", "Sec-Fetch-Site": "cross-site"}
    caller = await browser.read_caller(both)
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


_DASHBOARD: dict[str, Any] = {"name": "a dashboard", "grants": [{"role": "reader"}]}


async def _create_key(keys: Keys, **more: Any) -> dict[str, Any]:
    answer = await keys.ask(TOKEN, "POST", "/v1/keys", _DASHBOARD | more)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return dict(answer.json())


async def _works(keys: Keys, key: str) -> bool:
    status = (await keys.ask(key, "GET", "/v1/models")).status_code
    assert status in (200, 401)
    return status == 200


async def _wait_until_refused(keys: Keys, key: str) -> None:
    await until(lambda: _works(keys, key), lambda works: not works)


def _seconds_from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_key_is_made_used_and_revoked(keys: Keys, guarded: Api) -> None:
    key = await _create_key(keys)
    assert key["grants"] == [{"rights": ["read"], "project_id": None, "model_id": None}]
    assert key["created_by"] == "token"
    assert await _works(keys, key["key"])
    path = f"/v1/keys/{key['id']}"
    read = await keys.call(TOKEN, "GET", path)
    assert read["last_used_at"] is not None
    listed = await keys.call(TOKEN, "GET", "/v1/keys")
    assert listed == {"items": [read], "next": None}
    [stored] = await guarded.fetch("SELECT string_agg(k::text, '') FROM api_key k")
    secret = key["key"].split("_", 2)[2]  # it may contain "_" itself
    assert secret not in str(listed)
    assert secret not in stored
    assert secret.encode().hex() not in stored
    revoked = await keys.call(TOKEN, "POST", f"{path}/revoke")
    assert revoked["revoked_at"] is not None
    assert not await _works(keys, key["key"])
    await keys.call(TOKEN, "POST", f"{path}/rotate", {}, status=409)
    again = await keys.call(TOKEN, "POST", f"{path}/revoke")
    assert again["revoked_at"] == revoked["revoked_at"]


async def test_a_rotated_key_works_beside_the_old_one_a_while(keys: Keys, guarded: Api) -> None:
    first = await _create_key(keys)
    path = f"/v1/keys/{first['id']}/rotate"
    later = {"old_works_until": _seconds_from_now(600)}
    second = await keys.call(TOKEN, "POST", path, later)
    assert await _works(keys, first["key"])
    assert await _works(keys, second["key"])
    third = await keys.call(TOKEN, "POST", path, later)
    works = [await _works(keys, each["key"]) for each in (first, second, third)]
    assert works == [False, True, True]
    await guarded.execute(update(api_key).values(old_works_until=func.now()))  # the time has come
    await _wait_until_refused(keys, second["key"])
    fourth = await keys.call(TOKEN, "POST", path, {})
    assert [await _works(keys, secret) for secret in (third["key"], fourth["key"])] == [False, True]
    assert len({key["id"] for key in (first, second, third, fourth)}) == 1
    past = {"old_works_until": _seconds_from_now(-1)}
    await keys.call(TOKEN, "POST", path, past, status=422)


async def test_a_key_expires_and_another_replica_revokes_it_within_seconds(
    keys: Keys, guarded: Api, make_app: MakeApp
) -> None:
    key = await _create_key(keys, expires_at=_seconds_from_now(600))
    assert await _works(keys, key["key"])
    await guarded.execute(update(api_key).values(expires_at=func.now()))
    await _wait_until_refused(keys, key["key"])
    past = _DASHBOARD | {"expires_at": _seconds_from_now(-1)}
    await keys.call(TOKEN, "POST", "/v1/keys", past, status=422)
    key = await _create_key(keys)
    async with make_client(make_app(auth="on", api_token=TOKEN)) as other:
        others = Keys(other)
        assert await _works(others, key["key"])
        await keys.call(TOKEN, "POST", f"/v1/keys/{key['id']}/revoke")
        await _wait_until_refused(others, key["key"])


async def test_last_use_is_written_once_a_minute(keys: Keys, guarded: Api) -> None:
    key = await _create_key(keys)
    written = select(api_key.c.last_used_at).where(api_key.c.id == key["id"])
    times: set[Any] = set()
    for _ in range(20):
        assert await _works(keys, key["key"])
        times.update(await guarded.fetch(written))
    assert len(times) == 1
    long_ago = func.now() - text("interval '61 seconds'")
    await guarded.execute(update(api_key).values(last_used_at=long_ago))

    async def use_again() -> Any:
        await _works(keys, key["key"])
        [last_used_at] = await guarded.fetch(written)
        return last_used_at

    [before] = times
    assert await until(use_again, lambda at: at is not None and at > before)


async def test_key_cannot_outlive_its_creators_key(keys: Keys) -> None:
    bound = datetime.now(UTC) + timedelta(days=1)
    created = await _create_key(keys, grants=[{"role": "owner"}], expires_at=bound.isoformat())
    key, own = created["key"], f"/v1/keys/{created['id']}/rotate"
    for_ever = f"/v1/keys/{(await _create_key(keys))['id']}/rotate"
    later = (bound + timedelta(seconds=1)).isoformat()
    for path, body in (
        ("/v1/keys", _DASHBOARD),
        ("/v1/keys", _DASHBOARD | {"expires_at": later}),
        (own, {"expires_at": later}),
        (for_ever, {}),
    ):
        refused = await keys.call(key, "POST", path, body, status=403)
        assert "`expires_at`" in refused["detail"], (path, body)
    until_then = {"expires_at": bound.isoformat()}
    await keys.call(key, "POST", "/v1/keys", _DASHBOARD | until_then, status=201)
    await keys.call(key, "POST", for_ever, until_then, status=200)
    await keys.call(key, "POST", own, {}, status=200)


async def test_rejects_invalid_grants_and_those_beyond_the_callers_own(keys: Keys) -> None:
    cases: list[list[dict[str, Any]]] = [
        [],
        [{}],
        [{"rights": []}],
        [{"rights": ["reed"]}],
        [{"role": "king"}],
        [{"rights": ["read"], "model_id": "a", "project_id": "b"}],
        [{"rights": ["read"], "model": "a"}],
        [{"rights": ["read"], "model_id": ""}],
    ]
    for grants in cases:
        body = {"name": "x", "grants": grants}
        problem = await keys.call(TOKEN, "POST", "/v1/keys", body, status=422)
        assert problem["errors"][0]["path"].startswith("grants"), grants
    own: dict[str, Any] = {"rights": ["delete"], "model_id": OPEN}
    key = await keys.make({"rights": ["read", "admin"]}, own)
    beyond: list[tuple[dict[str, Any], bool]] = [
        ({"rights": ["read"]}, True),
        ({"rights": ["read", "admin"], "model_id": OPEN}, True),
        ({"rights": ["read", "delete"], "model_id": OPEN}, True),
        ({"rights": ["delete"]}, False),
        ({"rights": ["delete"], "model_id": "another"}, False),
        ({"role": "owner", "model_id": OPEN}, False),
    ]
    for grant, allowed in beyond:
        body = {"name": "x", "grants": [grant]}
        answer = await keys.ask(key, "POST", "/v1/keys", body)
        assert answer.status_code == (201 if allowed else 403), (grant, answer.text)
        more = await keys.call(TOKEN, "POST", "/v1/keys", body)
        rotation = await keys.ask(key, "POST", f"/v1/keys/{more['id']}/rotate", {})
        assert rotation.status_code == (200 if allowed else 403), grant


async def test_lists_keys_in_pages(keys: Keys) -> None:
    created_ids = [(await _create_key(keys))["id"] for _ in range(5)]
    listed_ids, following = [], ""
    while following is not None:
        page = await keys.call(TOKEN, "GET", f"/v1/keys?limit=2{following}")
        listed_ids += [item["id"] for item in page["items"]]
        following = page["next"] and f"&cursor={page['next']}"
    assert listed_ids == created_ids[::-1]


async def test_access_control_is_on_and_accepts_keys_in_one_header(
    make_app: MakeApp, guarded: Api
) -> None:
    for changes in ({"auth": "on"}, {"auth": "on", "api_token": ""}):
        async with make_client(make_app(**changes)) as client:
            await client.read("/v1/models", status=401)
            empty = {"Authorization": "Bearer "}
            assert (await client.get("/v1/models", headers=empty)).status_code == 401
    async with make_client(make_app(auth="off")) as client:
        await client.read("/v1/models")
    await guarded.read("/v1/models", status=401, token=TOKEN)
    basic = {"Authorization": OWNER["Authorization"].replace("Bearer", "Basic")}
    assert (await guarded.get("/v1/models", headers=basic)).status_code == 401
