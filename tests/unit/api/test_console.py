"""The console's files: cached by their names, and nothing else."""

import gzip
import re
from pathlib import Path

import httpx
import pytest

from inference_store.api import site
from inference_store.api.site import FILES
from inference_store.inference.task_types import TASK_TYPES

from .site_client import make_site_client

_TASKS = Path(__file__).parents[3] / "console" / "src" / "lib" / "tasks.ts"
SCRIPT = "let a = 1;\n" * 400


@pytest.fixture
def client(tmp_path: Path) -> httpx.AsyncClient:
    """A client of a console of three files, with a secret beside them."""
    folder = tmp_path / "files"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><title>Console</title>")
    (folder / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "assets" / "index-Ab12.js").write_text(SCRIPT)
    (tmp_path / "secret").write_text("secret")
    return make_site_client(site.list_console_routes(folder))


async def test_only_the_page_is_asked_for_again(client: httpx.AsyncClient) -> None:
    page = await client.get("/console/")
    assert page.text.startswith("<!doctype html>")
    assert page.headers["cache-control"] == "no-cache"
    script = await client.get("/console/assets/index-Ab12.js")
    assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert script.headers["content-type"].startswith("text/javascript")


async def test_it_has_the_strict_policy(client: httpx.AsyncClient) -> None:
    policy = (await client.get("/console/")).headers["content-security-policy"]
    assert policy == site.CONSOLE_POLICY
    assert "unsafe" not in policy
    with_data = [part for part in policy.split("; ") if "data:" in part]
    assert with_data == ["img-src 'self' blob: data:"]


async def test_does_not_resend_unchanged_files(client: httpx.AsyncClient) -> None:
    etag = (await client.get("/console/")).headers["etag"]
    again = await client.get("/console/", headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == etag.removeprefix("W/")
    assert (await client.get("/console/", headers={"If-None-Match": '"other"'})).status_code == 200


async def test_there_is_nothing_else(client: httpx.AsyncClient) -> None:
    names = ("gone.js", "assets", "assets/", "../secret", "..%2fsecret", "%2e%2e/secret", "/etc")
    for name in names:
        answer = await client.get(f"/console/{name}")
        assert answer.status_code == 404, name
        assert "secret" not in answer.text.replace(name, ""), name


async def test_a_browser_is_led_there_and_others_get_a_hint(client: httpx.AsyncClient) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    answer = await client.get("/", headers=browser)
    assert (answer.status_code, answer.headers["location"]) == (307, "console/")
    assert (await client.get("/console")).headers["location"] == "console/"
    assert (await client.post("/console/")).status_code == 405
    for accept in ("*/*", "application/json", ""):
        answer = await client.get("/", headers={"Accept": accept})
        assert answer.status_code == 404, accept
        assert "/console/" in answer.json()["detail"], accept


async def test_every_address_of_the_committed_page_is_answered() -> None:
    client = make_site_client(site.list_console_routes(site.FILES))
    page = (await client.get("/console/")).text
    addresses = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(addresses) >= 3
    for address in addresses:
        assert address.startswith("./")
        assert (await client.get(f"/console/{address}")).status_code == 200, address


def test_it_shows_every_task_type_in_its_own_way() -> None:
    table = re.search(r"^export const TASKS\b.*?^};", _TASKS.read_text(), re.MULTILINE | re.DOTALL)
    assert table is not None
    task_names = set(re.findall(r"^  (\w+):", table[0], re.MULTILINE))
    assert task_names == set(TASK_TYPES), "console/src/lib/tasks.ts has one line for each task type"
    outlined = set(re.findall(r"^  (\w+):.*isOutlined: true", table[0], re.MULTILINE))
    assert outlined == {name for name, task_type in TASK_TYPES.items() if task_type.outlined}


_ASSETS = FILES / "assets"
_IMPORT = re.compile(r"""(?:from|import)\s*["']\./([^"']+\.js)["']""")
# What is preloaded delays nothing that is shown first.
_PAGE_FILES = re.compile(r"<(?:script|link rel=\"stylesheet\")[^>]*assets/([^\"]+\.(?:js|css))\"")


def count_compressed(names: set[str]) -> int:
    """Return the bytes of assets and of all that they import when they are loaded."""
    assert names
    loaded: set[str] = set()
    while names - loaded:
        name = (names - loaded).pop()
        loaded.add(name)
        if name.endswith(".js"):
            names = names | set(_IMPORT.findall((_ASSETS / name).read_text()))
    return sum(len(gzip.compress((_ASSETS / name).read_bytes())) for name in loaded)


def test_the_wheel_gets_built_files_alone() -> None:
    files = [path for path in FILES.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".html", ".js", ".css", ".svg", ".txt"}
    assert sum(path.stat().st_size for path in files) < 1_500_000


def test_pages_are_small() -> None:
    first = set(_PAGE_FILES.findall((FILES / "index.html").read_text()))
    explore = {path.name for path in _ASSETS.glob("explore-*")}
    assert explore
    assert count_compressed(first) <= 40_000
    assert count_compressed(first | explore) <= 120_000
    coast_lines = {
        path.name for path in _ASSETS.glob("countries-50m-*")
    }  # of the map, looked at closely
    assert count_compressed({path.name for path in _ASSETS.iterdir()} - coast_lines) <= 300_000
    assert sum(len(gzip.compress((_ASSETS / name).read_bytes())) for name in coast_lines) <= 250_000
