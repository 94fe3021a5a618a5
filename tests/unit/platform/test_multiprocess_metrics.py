"""`/metrics` of a service with two processes has one sample for both."""

from prometheus_client import generate_latest

from inference_store.platform.metrics import (
    CAPTURE_SECONDS,
    CAPTURES_DROPPED,
    SPOOLED,
    MultiprocessMetrics,
    Samples,
    list_samples,
)


def read_sample(metrics: MultiprocessMetrics, name: str) -> float | None:
    lines = generate_latest(metrics).decode().splitlines()
    samples = [line for line in lines if line.startswith(name)]
    assert len(samples) <= 1
    return float(samples[0].rpartition(" ")[2]) if samples else None


def test_counters_are_summed_over_processes_and_gauges_over_those_that_live() -> None:
    samples: list[Samples] = [()]
    metrics = MultiprocessMetrics("proxy", lambda: samples[0])
    dropped = 'inference_store_proxy_captures_dropped_total{reason="left"}'
    CAPTURES_DROPPED.labels("left").inc()
    own = read_sample(metrics, dropped) or 0.0
    spooled = read_sample(metrics, "inference_store_proxy_captures_spooled") or 0.0
    samples[0] = [
        ("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 4.0),
        ("inference_store_proxy_captures_spooled", {}, 2.0),
        ("inference_store_proxy_captures_dropped_total", {"reason": "new"}, 1.0),
    ]
    assert read_sample(metrics, dropped) == own + 4
    assert read_sample(metrics, dropped.replace("left", "new")) == 1
    assert read_sample(metrics, "inference_store_proxy_captures_spooled") == spooled + 2
    metrics.add_former()
    samples[0] = [("inference_store_proxy_captures_dropped_total", {"reason": "left"}, 3.0)]
    assert read_sample(metrics, dropped) == own + 7
    assert read_sample(metrics, "inference_store_proxy_captures_spooled") == spooled


def test_shows_metrics_of_the_service_and_of_the_process() -> None:
    CAPTURE_SECONDS.labels("upload").observe(0.2)
    SPOOLED.set_function(lambda: 0)
    names = {name for name, _, _ in list_samples("proxy")}
    assert "inference_store_proxy_capture_seconds_bucket" in names
    assert "process_cpu_seconds_total" in names
    assert not [name for name in names if "heartbeat" in name or name.endswith("_created")]
