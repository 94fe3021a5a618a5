"""MLflow's client, run by MLflow's own Python: a question a line, and an answer a line.

`python -P mlflow_client.py URL`; what is asked, and how long it took, is JSON. See tracking.py.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import mlflow  # of the environment that it runs in
from mlflow import MlflowClient
from mlflow.entities import TraceInfo, TraceLocation, TraceState


def main() -> None:
    # Whatever else MLflow prints is not an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr
    mlflow.set_tracking_uri(sys.argv[1])
    client = MlflowClient(sys.argv[1])
    for line in sys.stdin:
        question = json.loads(line)
        answer = _DONE[question["do"]](client, question)
        print(json.dumps(answer), file=answers, flush=True)


def _experiment(client: MlflowClient, question: Mapping[str, Any]) -> int:
    experiment = client.get_experiment_by_name(question["name"])
    return int(
        experiment.experiment_id if experiment else client.create_experiment(question["name"])
    )


def _write(client: MlflowClient, question: Mapping[str, Any]) -> None:
    trace = question["trace"]
    experiment = str(_experiment(client, {"name": trace["model"]}))
    # What its exporter of traces calls when one has ended.
    client._tracing_client.start_trace(
        TraceInfo(
            trace_id=trace["trace_id"],
            trace_location=TraceLocation.from_experiment_id(experiment),
            request_time=trace["timestamp_ms"],
            execution_duration=trace["execution_time_ms"],
            state=TraceState(trace["status"]),
            client_request_id=trace["client_request_id"],
            tags=trace["tags"],
        )
    )


def _search(client: MlflowClient, question: Mapping[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    traces_found = client.search_traces(
        locations=[str(question["experiment"])],
        filter_string=question["filter"],
        max_results=question["limit"],
        order_by=["timestamp_ms DESC"],
        include_spans=False,
    )
    seconds = time.perf_counter() - began
    traces = [
        {"trace_id": trace.info.trace_id, "tags": dict(trace.info.tags)} for trace in traces_found
    ]
    return {"seconds": seconds, "traces": traces}


_DONE: dict[str, Callable[[MlflowClient, Mapping[str, Any]], Any]] = {
    "experiment": _experiment,
    "write": _write,
    "search": _search,
}

if __name__ == "__main__":
    main()
