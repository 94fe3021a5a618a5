"""Off without its variables, and then nothing of the SDK is even imported."""

import subprocess
import sys

from inference_store.platform import traces

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


def test_the_environment_decides() -> None:
    for environment, is_requested in (
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": ""}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ):
        assert traces.is_requested(environment) is is_requested, environment


def run(code: str, environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


SDK = (
    "import sys\n"
    "from inference_store.platform import traces\n"
    "traces.configure('api')\n"
    "print(traces.is_on(), any(name.startswith('opentelemetry.sdk') for name in sys.modules))\n"
    "traces.stop()"
)


def test_imports_the_sdk_only_if_traces_are_enabled() -> None:
    """tests/unit/cli/test_imports.py says the same of each service."""
    assert run(SDK, {}).strip().endswith("False False")
    assert run(SDK, ENDPOINT).strip().endswith("True True")
    # one that is not supported is logged
    output = run(SDK, ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert "only http/protobuf is spoken" in output
    assert "False False" in output
