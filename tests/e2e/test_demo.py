"""`inference-store demo` as a newcomer runs it: servers from wheels, processes, real input."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect, sync_playwright

from tests.console.chromium import CHROMIUM, OPTIONS
from tests.demo_process import Demo, demo, remove_database, wait_for
from tests.e2e import notebook, tutorial
from tests.e2e.dataframe import follow_dataframe
from tests.readers.environment import find_readers
from tests.servers.missing import demand
from tests.servers.network_cut import CUT, list_interfaces, write_entering

pytest.importorskip("cv2", reason="the demo's packages are not installed")

pytestmark = pytest.mark.timeout(2400)

INFERENCES = {"face-detector": 240, "people-detector": 240, "digit-classifier": 300}
FIRST_START_SECONDS = 600.0
NEXT_START_SECONDS = 300.0
PARTS = {"model-server", "postgres", "s3", "kafka", "ingester", "api", "retention", "proxy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the demo writes: what one test leaves, the next starts with."""
    path = tmp_path_factory.mktemp("demo")
    yield path
    remove_database(path / "output.txt")


def is_gone(pid: int) -> bool:
    """Check that the process is gone, or dead and not collected (containers without an init)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def count_inferences(api: str, filter_text: str | None = None) -> dict[str, int]:
    """Count the inferences of each model, or those of them that match."""
    collected = {}
    for model in INFERENCES:
        request = urllib.request.Request(
            f"{api}/v1/models/{model}/inferences/count",
            data=json.dumps({"filter": filter_text} if filter_text else {}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            collected[model] = json.load(answer)["count"]
    return collected


def send_own_picture(printed: str, folder: Path) -> None:
    """Send the picture behind the first answer through the proxy again, as pasted into a shell."""
    blocks = re.findall(r"^# (?:The|What was).*:\n((?:.+\n)+)", printed, re.MULTILINE)
    fetch, send, look = blocks
    subprocess.run(fetch, shell=True, cwd=folder, check=True)
    answer = json.loads(subprocess.check_output(send, shell=True, cwd=folder))
    assert answer["id"] == "mine"
    wait_for(lambda: b'"mine"' in subprocess.check_output(look, shell=True), 180)
    result = json.loads(subprocess.check_output(look, shell=True))
    assert (result["protocol"], result["ok"], result["width"]) == ("v2", True, 400)


def assert_the_doctor_finds_nothing(printed: str, folder: Path) -> None:
    """Run the doctor as pasted into a shell: it finds no fault in the demo."""
    (command,) = re.findall(r"^\(set -a; .* doctor\)$", printed, re.MULTILINE)
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      topic: 3 partitions" in done.stdout


def test_the_demo_feeds_once_answers_and_leaves_no_process(folder: Path) -> None:
    with demo(folder) as first:
        first.wait_serving(FIRST_START_SECONDS)
        assert count_inferences(first.api) == INFERENCES
        half = {model: count // 2 for model, count in INFERENCES.items()}
        for protocol in ("v2", "v2-grpc"):  # the proxy captured each call, over both transports
            assert count_inferences(first.api, f"protocol = '{protocol}' AND ok") == half
        printed = first.output.read_text()
        commands = re.findall(r"^curl -s .*?-d '.*?'$", printed, re.MULTILINE | re.DOTALL)
        assert len(commands) == 3
        for command in commands:  # as pasted into a shell
            answer = json.loads(subprocess.check_output(command, shell=True, text=True))
            assert len(answer["items"]) >= 2
        assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN" in printed
        assert "→ none" not in printed
        assert "nothing found" not in printed
        with urllib.request.urlopen(f"{first.api}/console/", timeout=60) as page:
            assert b"Inference Store" in page.read()
        assert not first.node.exists()
        follow_dataframe(first.api)
        if demand("readers", find_readers):
            notebook.run(first.api, folder / "notebook")
        tutorial.follow(first.api, first.proxy, folder)
        send_own_picture(printed, folder)
        assert_the_doctor_finds_nothing(printed, folder)
        api = first.api
        fed = INFERENCES | {"face-detector": INFERENCES["face-detector"] + 1}
        pids = first.pids()
        assert set(pids) == PARTS
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(300) == 0
    assert all(is_gone(pid) for pid in pids.values())

    # kill -9 of the next start, then one more: the data is there, not twice, and nothing is left.
    with demo(folder) as second:
        second.wait_serving(NEXT_START_SECONDS)
        assert "all there" in second.output.read_text()
        pids = second.pids()
        second.process.kill()
        second.process.wait(300)
    if sys.platform == "linux":
        wait_for(lambda: all(is_gone(pid) for pid in pids.values()), 300)
    with demo(folder) as third:
        third.wait_serving(NEXT_START_SECONDS)
        assert all(is_gone(pid) for pid in pids.values())
        assert third.api == api
        assert count_inferences(third.api) == fed
        pids = third.pids()
    assert all(is_gone(pid) for pid in pids.values())


def look_at_console(running: Demo, folder: Path) -> None:
    """Open the console in a browser that has the demo's network."""
    browser = write_entering(CHROMIUM, running.process.pid, folder)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=OPTIONS)
        page = chromium.new_page()
        page.set_default_timeout(180_000)
        page.goto(f"{running.api}/console/")
        for model in INFERENCES:
            shown = page.get_by_role("article").filter(has_text=model)
            expect(shown).to_contain_text("inferences", timeout=180_000)
            expect(shown.locator("img").first).to_be_visible(timeout=180_000)
        chromium.close()


@pytest.mark.network_cut
def test_without_a_network_the_console_is_served_all_the_same(folder: Path) -> None:
    with demo(folder, CUT) as running:
        running.wait_serving(FIRST_START_SECONDS)
        assert list_interfaces(running.process.pid) == ["lo"]
        look_at_console(running, folder)
        assert not running.node.exists()
