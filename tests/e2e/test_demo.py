"""`inference-store demo` as a newcomer runs it, and the tutorials beside it."""

import ast
import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import pytest
from playwright.sync_api import expect, sync_playwright

from inference_store_client import Store, predicted, prediction
from tests.console.chromium import CHROMIUM, OPTIONS
from tests.demo_process import Demo, demo, remove_database, wait_for
from tests.http_requests import ask, send
from tests.integration.client.test_docs import run_examples
from tests.readers.environment import find_readers, read
from tests.servers.machine import CUT, list_interfaces, write_entering
from tests.servers.missing import demand
from tests.servers.process import is_gone

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "dataframe.md"
NOTEBOOK = Path(__file__).parents[2] / "examples" / "hard_examples.ipynb"


def run_notebook(api: str, folder: Path) -> None:
    """Run each cell in a folder. Raise AssertionError if one fails or shows something else."""
    (folder / "hard-faces").mkdir(parents=True)  # of an earlier run
    shown = read("run_notebook.py", str(NOTEBOOK), api, home=folder, folder=folder)
    with Store(api) as store:
        unsure = store.model("face-detector").inferences(
            prediction(predicted.score < 0.4, label="face")
        )
        uids = {str(inference.uid) for inference in unsure.stream()}
    assert int(shown["unsure"]) == len(uids) > 10
    assert int(shown["hallway"]) > 0
    assert len(ast.literal_eval(shown["scores"])) == 3
    counts = ast.literal_eval(shown["photographs"]).values()
    assert sum(int(count.split(" of ")[0]) for count in counts) == len(uids)
    assert shown["look"].count("<image ") == 12
    assert shown["look"].count("<rect ") >= 12
    assert f"hard-faces: {len(uids)} pictures of {len(uids)} inferences" in shown["export"]
    coco = json.loads((folder / "hard-faces" / "annotations.json").read_text())
    assert {image["uid"] for image in coco["images"]} == uids
    assert [category["name"] for category in coco["categories"]] == ["face"]
    assert min(annotation["score"] for annotation in coco["annotations"]) < 0.4


pytest.importorskip("cv2", reason="the demo's packages are not installed")


PICTURES = {
    "face-detector": 240,
    "people-detector": 240,
    "shape-segmenter": 34,
    "digit-classifier": 300,
}
INFERENCES = PICTURES | {"topic-classifier": 100, "docs-assistant": 24}
FIRST_START_SECONDS = 600.0
NEXT_START_SECONDS = 300.0
SENT = 60
PARTS = {"model-server", "postgres", "s3", "kafka", "ingester", "api", "retention", "proxy"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the demo writes: what one test leaves, the next starts with."""
    path = tmp_path_factory.mktemp("demo")
    yield path
    remove_database(path / "output.txt")


def count_inferences(api: str, filter_text: str | None = None) -> dict[str, int]:
    body = {"filter": filter_text} if filter_text else {}
    return {
        model: ask(f"{api}/v1/models/{model}/inferences/count", body)["count"]
        for model in INFERENCES
    }


def assert_the_demo_shows_what_happens(api: str) -> None:
    chats = {model: 24 * (model == "docs-assistant") for model in INFERENCES}
    half = {model: (INFERENCES[model] - chats[model]) // 2 for model in INFERENCES}
    for protocol, expected in (("v2", half), ("v2-grpc", half), ("openai", chats)):
        assert count_inferences(api, f"protocol = '{protocol}'") == expected
    errors = {"face-detector": 5, "people-detector": 5, "docs-assistant": 1}
    assert count_inferences(api, "NOT ok") == dict.fromkeys(INFERENCES, 0) | errors
    assert count_inferences(api, "model_ms >= 200")["digit-classifier"] >= 30  # the slow spell
    entrance = "data_source = 'entrance-camera-feed' AND top_score > 0.7 AND brightness {}"
    bright, dark = (
        ask(f"{api}/v1/models/face-detector/inferences/count", {"filter": entrance.format(range_)})
        for range_ in ("> 60", "< 30")
    )
    assert bright["count"] > 20 > dark["count"] + 10
    body = {"group_by": ["photograph"], "measures": [{"function": "count"}], "limit": 100}
    assert len(ask(f"{api}/v1/models/face-detector/inferences/aggregate", body)["groups"]) >= 40


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


def send_pictures(running: Demo, *, name: str) -> None:
    inferences = f"{running.api}/v1/models/face-detector/inferences"
    [item] = ask(f"{inferences}/query", {"limit": 1})["items"]
    picture = base64.b64encode(send(f"{inferences}/uid:{item['uid']}/data")).decode()
    image = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [picture]}

    def infer(number: int) -> None:
        body = {"id": f"{name}-{number}", "inputs": [image]}
        url = f"{running.proxy}/v2/models/face-detector/infer"
        assert ask(url, body)["id"] == f"{name}-{number}"

    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(infer, range(SENT)))) == SENT


def count_published(demo_folder: Path) -> float:
    """Return how many captures of this start's proxy Kafka has acknowledged."""
    settings = (demo_folder / ".inference-store" / "run" / "settings.env").read_text()
    (port,) = re.findall(r"PROXY_ADMIN_PORT=(\d+)", settings)
    text = send(f"http://127.0.0.1:{port}/metrics").decode()
    return sum(
        float(value)
        for value in re.findall(
            r'inference_store_proxy_captures_total\{outcome="published"\} (\S+)', text
        )
    )


def assert_the_doctor_finds_nothing(printed: str, folder: Path) -> None:
    """Run the doctor as pasted into a shell: it finds no fault in the demo."""
    (command,) = re.findall(r"^\(set -a; .* doctor\)$", printed, re.MULTILINE)
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      topic: 3 partitions" in done.stdout


@pytest.mark.timeout(2400)
def test_the_demo_feeds_once_answers_and_leaves_no_process(folder: Path) -> None:
    with demo(folder) as first:
        first.wait_serving(FIRST_START_SECONDS)
        assert count_inferences(first.api) == INFERENCES
        assert_the_demo_shows_what_happens(first.api)
        printed = first.output.read_text()
        commands = re.findall(r"^curl -s .*?-d '.*?'$", printed, re.MULTILINE | re.DOTALL)
        # as pasted into a shell
        answers = [
            json.loads(subprocess.check_output(command, shell=True, text=True))
            for command in commands
        ]
        *found, evaluated, drift = answers
        assert [len(answer["items"]) >= 2 for answer in found] == [True] * 3
        worst = [part["figure"]["value"] for part in evaluated["slices"]["items"]]
        assert evaluated["labelled"] == 235
        assert worst == sorted(worst)
        assert (worst[0] < 0.1, worst[-1] > 0.7) == (True, True)
        assert "brightness" in {row["name"] for row in drift["rows"] if row["drifted"]}
        assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN" in printed
        assert "→ none" not in printed
        assert "nothing found" not in printed
        assert b"Inference Store" in send(f"{first.api}/console/")
        assert not first.node.exists()
        assert run_examples(PAGE, first.api, least=10) == ""
        if demand("readers", find_readers):
            run_notebook(first.api, folder / "notebook")
        follow(first.api, first.proxy, folder)
        send_own_picture(printed, folder)
        assert_the_doctor_finds_nothing(printed, folder)
        api = first.api
        fed = INFERENCES | {"face-detector": INFERENCES["face-detector"] + 1 + SENT}
        pids = first.pids()
        assert set(pids) == PARTS
        send_pictures(first, name="before-ctrl-c")
        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(300) == 0
    assert all(is_gone(pid) for pid in pids.values())

    with demo(folder) as second:
        second.wait_serving(NEXT_START_SECONDS)
        assert "all there" in second.output.read_text()
        assert second.api == api
        assert count_inferences(second.api) == fed
        assert ask(f"{second.api}/v1/accounting")["closes"]
        with Store(second.api) as store:
            faces = store.model("face-detector")
            replay = faces.replay(to="face-detector", most=40, rate=100).wait()
            codes = {item.grpc_code for item in replay.differences()}
        assert (replay.counts["compared"], replay.summary["disagreeing"]) == (40, 0)
        assert codes >= {None, 0}
        pids = second.pids()
    assert all(is_gone(pid) for pid in pids.values())


def test_after_a_kill_the_next_start_indexes_what_was_captured(folder: Path) -> None:
    """Kafka, which keeps everything in memory, has what the index lacks. A second Ctrl-C says the
    same number that is left to the next start."""
    with demo(folder) as first:
        first.wait_serving(FIRST_START_SECONDS)
        expected = count_inferences(first.api)
        pids = first.pids()
        os.kill(pids["ingester"], signal.SIGSTOP)
        fed = count_published(folder)
        send_pictures(first, name="before-kill")
        wait_for(lambda: count_published(folder) >= fed + SENT, 300)
        first.process.kill()
        first.process.wait(300)
    if sys.platform == "linux":
        wait_for(lambda: all(is_gone(pid) for pid in pids.values()), 300)
    expected["face-detector"] += SENT
    with demo(folder) as second:
        second.wait_serving(NEXT_START_SECONDS)
        assert all(is_gone(pid) for pid in pids.values())
        assert count_inferences(second.api) == expected
        asyncio.run(give_up(second, folder))
    assert f"Gave up with {SENT} captures to go" in second.output.read_text()


async def give_up(running: Demo, folder: Path) -> None:
    """Stop the demo while nothing can be indexed, and stop it again once it has said what waits."""
    settings = (folder / ".inference-store" / "run" / "settings.env").read_text()
    (dsn,) = re.findall(r"^INFERENCE_STORE_POSTGRES_DSN='?([^'\n]+)", settings, re.MULTILINE)
    connection = await asyncpg.connect(dsn)  # the demo's stop ends it
    await connection.execute("BEGIN; LOCK TABLE inference IN SHARE MODE")
    send_pictures(running, name="before-giving-up")
    running.process.send_signal(signal.SIGINT)
    says = f"{SENT} captures to go; Ctrl-C gives up"
    wait_for(lambda: says in running.output.read_text(), 300)
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(300) == 0
    connection.terminate()


def look_at_console(running: Demo, folder: Path) -> None:
    browser = write_entering(CHROMIUM, running.process.pid, folder)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=OPTIONS)
        page = chromium.new_page()
        page.set_default_timeout(180_000)
        page.goto(f"{running.api}/console/")
        for model in PICTURES:
            shown = page.get_by_role("article").filter(has_text=model)
            expect(shown).to_contain_text("inferences", timeout=180_000)
            expect(shown.locator("img").first).to_be_visible(timeout=180_000)
        chromium.close()


@pytest.mark.timeout(2400)
@pytest.mark.network_cut
def test_without_a_network_the_console_is_served_all_the_same(folder: Path) -> None:
    with demo(folder, CUT) as running:
        running.wait_serving(FIRST_START_SECONDS)
        assert list_interfaces(running.process.pid) == ["lo"]
        look_at_console(running, folder)
        assert not running.node.exists()


TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial" / "first-hour.md"
_BLOCK = re.compile(r"^```(sh|json|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SECONDS = 600


class Step(NamedTuple):
    """A command, and what the page shows as its output; empty if it shows nothing."""

    command: str
    output: str


def read_steps(page: str) -> Iterator[Step]:
    blocks = [(kind, text) for kind, text in _BLOCK.findall(page)]
    for number, (kind, text) in enumerate(blocks):
        after = blocks[number + 1] if number + 1 < len(blocks) else ("sh", "")
        if kind == "sh":
            yield Step(text, "" if after[0] == "sh" else after[1])


def follow(api: str, proxy: str, folder: Path) -> None:
    """Run each step beside a demo whose data lie in a folder. Raise AssertionError for the first
    that fails or prints something else."""
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    first, *steps = read_steps(TUTORIAL.read_text())
    assert first.command == "API=http://127.0.0.1:8080\nPROXY=http://127.0.0.1:8090\n"
    for step in steps:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step.command],
            cwd=folder,
            env=os.environ | {"API": api, "PROXY": proxy},
            timeout=_SECONDS,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # a terminal shows both
            text=True,
            check=False,
        )
        is_right = done.returncode == 0 and is_shown(step.output, done.stdout)
        assert is_right, f"{step.command}\n{done.stdout}"


def is_shown(expected: str, printed: str) -> bool:
    """Tell whether a page shows what was printed: all of a text, or a part of a JSON document."""
    if expected.startswith("{"):
        return is_part(json.loads(expected), json.loads(printed))
    return not expected or is_part(expected.strip(), printed.strip())


def is_part(expected: Any, actual: Any) -> bool:
    """Tell whether a value is the real one; it may lack members and last items, `…` is any text."""
    match expected, actual:
        case dict(), dict():
            return all(
                key in actual and is_part(value, actual[key]) for key, value in expected.items()
            )
        case list(), list():
            return len(expected) <= len(actual) and all(map(is_part, expected, actual))
        case str(), str():
            return re.fullmatch(".*".join(map(re.escape, expected.split("…"))), actual) is not None
    return bool(expected == actual)
