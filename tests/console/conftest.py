"""A browser, and a console on real servers with inferences from a real producer."""

import asyncio
import json
import urllib.error
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from inference_store.erasure.log import new_key
from tests.http_requests import send
from tests.producer import Capture, Producer
from tests.servers.environment import PREFIX, service_environment
from tests.servers.fixtures import unique
from tests.servers.kafka import Kafka
from tests.servers.minio import S3
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until
from tests.service_process import Service
from tests.settings import TOKEN

from .chromium import CHROMIUM, OPTIONS
from .content import list_captures
from .watched_page import WatchedPage

WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 390, "height": 844}
SIGNING = new_key()
"""Signs the certificates of the erasures here."""


@dataclass(frozen=True, slots=True)
class Console:
    """A running console and the API behind it."""

    address: str
    service: Service
    environment: dict[str, str]
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the API, and return the decoded JSON answer."""
        return json.loads(self.send(method, path, body))

    def send(self, method: str, path: str, body: Any = None) -> bytes:
        """Send a request to the API, and return the bytes of the answer."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return send(self.address + path, body, method=method, **headers)

    def produce(self, *captures: Capture) -> None:
        """Produce inferences, and wait until all of them are indexed."""
        models = Counter(capture.model_id for capture in captures)
        before = {model: self.count(model) for model in models}
        topic = self.environment[f"{PREFIX}KAFKA_TOPIC"]
        run_beside(produce(self.environment, topic, captures))
        expected = {model: before[model] + number for model, number in models.items()}
        wait_until(
            lambda: {model: self.count(model) for model in models} == expected,
            seconds=180,
            what="all indexed",
        )

    def count(self, model: str) -> int:
        """Return how many inferences a model has; 0 if there is no such model."""
        try:
            answer = self.ask("POST", f"/v1/models/{model}/inferences/count", {})
        except urllib.error.HTTPError as error:
            assert error.code == 404
            return 0
        return int(answer["count"])

    def find_ids(self, model: str, **question: Any) -> list[str]:
        path = f"/v1/models/{model}/inferences/query"
        return [item["inference_id"] for item in self.ask("POST", path, question)["items"]]


@pytest.fixture(scope="session")
def console(
    postgres_server: Postgres,
    migrated_template: str,
    kafka_server: Kafka,
    minio_server: S3,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Console]:
    """A console with all inferences of `content.py`."""
    name, folder, port = unique(), tmp_path_factory.mktemp("console"), free_port()
    database = postgres_server.create_database(name, template=migrated_template)
    topic = kafka_server.create_topic(unique(), partitions=1)
    bucket = minio_server.create_bucket(unique())
    environment = service_environment(
        database,
        kafka_server,
        minio_server,
        bucket,
        KAFKA_TOPIC=topic,
        API_PORT=str(port),
        CERTIFICATE_KEY=SIGNING.pem,
        # where `test_replays.py` starts one
        REPLAY_PROXY=f"http://127.0.0.1:{free_port()}",
        # an event that lacks an object is soon a dead letter
        INGESTER_PARKED_GIVE_UP_SECONDS="1",
    )
    services = [
        Service(service, environment, folder) for service in ("ingester", "retention", "api")
    ]
    run_beside(produce(environment, topic, list_captures()))
    running = Console(f"http://127.0.0.1:{port}", services[-1].wait_ready(), environment)
    wait_until(
        lambda: running.ask("POST", "/v1/inferences/count", {})["count"] == len(list_captures()),
        seconds=180,
        what="all indexed",
    )
    yield running
    for service in services:
        service.stop()
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def guarded(console: Console, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """The same store behind an api with access control."""
    with serve_guarded(console, tmp_path_factory.mktemp("guarded"), API_TOKEN=TOKEN) as guarded:
        yield guarded


@contextmanager
def serve_guarded(console: Console, folder: Path, **changes: str) -> Iterator[Console]:
    """Serve the same store by another api with access control and changed settings."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    changes |= {"AUTH": "on", "API_PORT": str(port), "API_PUBLIC_URL": address}
    environment = console.environment | {PREFIX + name: text for name, text in changes.items()}
    service = Service("api", environment, folder)
    yield Console(address, service.wait_ready(), environment, changes.get("API_TOKEN", ""))
    service.stop()


def run_beside(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in its own thread, since the browser's loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()


async def produce(environment: dict[str, str], topic: str, captures: Sequence[Capture]) -> None:
    async with Producer(environment, topic) as producer:
        await producer.produce(*captures)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    if not Path(CHROMIUM).exists():
        pytest.fail(f"There is no {CHROMIUM}: apt-get install chromium fonts-dejavu-core")
    # as for the actions of a page, since the machine may be busy
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield chromium
        chromium.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, console: Console) -> Iterator[OpenPage]:
    """A factory: `open_page("#/m/…", scheme="dark", narrow=True, of=another_console)`.

    At the end each page is checked: no broken policy, no error, no request to another host.
    """
    watched_pages: list[WatchedPage] = []

    def make(
        fragment: str = "", *, scheme: Any = "light", narrow: bool = False, of: Console = console
    ) -> Page:
        size: Any = NARROW if narrow else WIDE
        context = browser.new_context(viewport=size, color_scheme=scheme)
        context.set_default_timeout(60_000)
        page = context.new_page()
        watched_pages.append(WatchedPage(page, of.address))
        page.goto(f"{of.address}/console/{fragment}")
        return page

    yield make
    for watched_page in watched_pages:
        watched_page.page.context.close()
    for watched_page in watched_pages:
        watched_page.check()
