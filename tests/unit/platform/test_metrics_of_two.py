"""What `/metrics` shows of a service with two processes: one sample for both."""

from prometheus_client import generate_latest

from inference_store.platform.metrics import CAPTURE_SECONDS, CAPTURES_DROPPED, SPOOLED
from inference_store.platform.metrics_of_two import MetricsOfTwo, Told, samples_of


def shown(metrics: MetricsOfTwo, name: str) -> float | None:
    lines = generate_latest(metrics).decode().splitlines()
    found = [line for line in lines if line.startswith(name)]
    assert len(found) <= 1
    return float(found[0].rpartition(" ")[2]) if found else None


def test_counters_are_summed_over_processes_and_gauges_over_those_that_live() -> None:
    told: list[Told] = [()]
    metrics = MetricsOfTwo("proxy", lambda: told[0])
    dropped = 'inference_store_proxy_captures_dropped_total{reason="left"}'
    CAPTURES_DROPPED.labels("left").inc()
    own = shown(metrics, dropped) or 0.0
    spooled = shown(metrics, "inference_store_proxy_captures_spooled") or 0.0
    told[0] = [
        ("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 4.0),
        ("inference_store_proxy_captures_spooled", {}, 2.0),
        ("inference_store_proxy_captures_dropped_total", {"reason": "new"}, 1.0),
    ]
    assert shown(metrics, dropped) == own + 4
    assert shown(metrics, dropped.replace("left", "new")) == 1
    assert shown(metrics, "inference_store_proxy_captures_spooled") == spooled + 2
    metrics.begin_anew()
    told[0] = [("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 3.0)]
    assert shown(metrics, dropped) == own + 7
    assert shown(metrics, "inference_store_proxy_captures_spooled") == spooled


def test_what_a_process_tells_is_its_services_own_and_what_it_costs() -> None:
    CAPTURE_SECONDS.labels("upload").observe(0.2)
    SPOOLED.set_function(lambda: 0)
    names = {name for name, _, _ in samples_of("proxy")}
    assert "inference_store_proxy_capture_seconds_bucket" in names
    assert "process_cpu_seconds_total" in names
    assert not [name for name in names if "heartbeat" in name or name.endswith("_created")]
