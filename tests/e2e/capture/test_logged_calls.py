"""From a request logger's events to rows, with every service: nothing that was taken is lost."""

import json
import signal
import socket
from pathlib import Path

import pytest

from tests.logged_events import TENSORS, TOKEN, V1, V2, kserve, seldon
from tests.proxy_process import Proxy
from tests.servers.fixtures import MakeEnvironment, MakeTopic
from tests.servers.waiting import wait_until

from .real_line import read_metadata, run_line


def _send(proxy: Proxy, *events: bytes) -> None:
    host, _, port = proxy.http.rpartition(":")
    for event in events:
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(event)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


@pytest.mark.real_kafka
def test_events_of_loggers_become_rows_and_the_books_close(
    service_environment: MakeEnvironment, topic: MakeTopic, tmp_path: Path
) -> None:
    """Also those that wait for an answer when the proxy is stopped. If it is killed, they are lost,
    and counted."""
    environment = service_environment(
        KAFKA_TOPIC=topic(2),
        KAFKA_REPORTS_TOPIC=topic(),
        PROXY_CLOUD_EVENTS_TOKEN=TOKEN,
        PROXY_CLOUD_EVENTS_SECONDS="3600",
    )
    upstreams = {"kserve": [{"name": "kserve", "cloud_events": "/cloudevents"}]}
    models = [{"model": "*", "metadata_headers": ["Ce-Namespace"]}]
    with run_line(environment, tmp_path, upstreams, models) as line:
        proxy = line.proxies["kserve"]
        one = kserve("request", V2[0], id="one"), kserve("response", V2[1], id="one")
        two = kserve("response", TENSORS[1], id="two"), kserve("request", TENSORS[0], id="two")
        _send(proxy, *one, *two, *one)
        _send(proxy, seldon("request", V1[0], id="e-1"), seldon("response", V1[1], id="e-2"))
        _send(proxy, kserve("request", V1[0], id="three"))
        first, second = line.captured("sklearn-iris", 2)
        assert {first["inference_id"], second["inference_id"]} == {"a-1", "two"}
        assert [(each["ok"], each["http_status"]) for each in (first, second)] == [(True, 200)] * 2
        tensors = first if first["inference_id"] == "two" else second
        assert line.blob(tensors, "data") == TENSORS[0][-8:]
        assert set(tensors["flags"]) >= {"capture_request_length_lost"}
        assert read_metadata(first)["ce-namespace"] == "default"
        (wine,) = line.captured("wines.classifier", 1)
        assert (wine["protocol"], json.loads(line.blob(wine, "response"))) == (
            "kserve-v1",
            json.loads(V1[1]),
        )
        proxy.stop()
        alone = line.captured("sklearn-iris", 3)
        (third,) = [each for each in alone if each["inference_id"] == "three"]
        assert not third["ok"]
        assert "capture_response_missing" in third["flags"]

        def all_are_counted() -> bool:
            books = line.accounting()
            reports = [report for producer in books["producers"] for report in producer["reports"]]
            return bool(books["closes"]) and [each["published"] for each in reports] == [4]

        wait_until(all_are_counted, seconds=300, what="the last report")
        proxy.restart()
        proxy.wait_ready()
        _send(proxy, kserve("request", V1[0], id="four"))
        proxy.process.send_signal(signal.SIGKILL)

        def is_reported() -> bool:
            producers = line.accounting()["producers"]
            dropped = [report["dropped"] for each in producers for report in each["reports"]]
            return sorted(dropped, key=len) == [{}, {"process_ended": 1}]

        wait_until(is_reported, seconds=300, what="the report of what was lost")
