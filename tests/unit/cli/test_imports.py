"""A start does not import packages that it does not need: each one makes every start slower."""

import os
import subprocess
import sys
from pathlib import Path

SERVICES = Path(__file__).parents[3] / "services"
# Of each package the reason why a start does without.
SELDOM = {
    "alembic": "the schema is migrated by a command",
    "inference_store.local": "servers on this machine are the demo's",
    "jwt": "tokens are read where an issuer is set",
    "lark": "its parser is made for the first filter in text",
    "opentelemetry.sdk": "traces are on where the environment asks for them",
    "shtab": "completion is a command of its own",
    "rapidfuzz": "the nearest names are looked for where one is not there",
}
KAFKA = {"aiokafka": "of these two a reconciliation alone asks Kafka"}
NOT_SERVED = {
    "fastapi": "the api alone has routes",
    "starlette": "the api alone has routes",
    "pydantic.v1": "FastAPI imports it",
}
NOT_PROXIED = {
    "google.protobuf": "messages of gRPC are the proxy's",
    "grpc": "calls of gRPC are the proxy's",
    "yaml": "the proxy alone has a file of configuration",
}
NOT_SIGNED = {"cryptography": "only the api and retention sign or verify"}
NOT_STORED = {
    "asyncpg": "the proxy knows no database",
    "inference_store.index": "the proxy knows no database",
    "minio": "the proxy writes to Kafka, not to the object store",
    "obstore": "the proxy writes to Kafka, not to the object store",
    "sqlalchemy": "the proxy knows no database",
}
NOTHING = {
    "importlib.metadata": "nobody has asked for the version yet",
    "aiohttp": "no port is open yet",
    "inference_store.inference": "no command is chosen yet",
    "inference_store.platform": "no command is chosen yet",
    "pydantic": "no setting is read yet",
    "structlog": "nothing is logged yet",
}
NEVER: dict[str, dict[str, str]] = {
    "main": SELDOM | NOTHING,
    "api": SELDOM | KAFKA | NOT_PROXIED,
    "ingester": SELDOM | NOT_SERVED | NOT_PROXIED | NOT_SIGNED,
    "retention": SELDOM | KAFKA | NOT_SERVED | NOT_PROXIED,
    "proxy": SELDOM | NOT_SERVED | NOT_SIGNED | NOT_STORED,
}


def list_imports(service: str) -> frozenset[str]:
    """All modules of a fresh interpreter that has what a service, or any command, starts with."""
    start = "import inference_store.cli.main"
    if service != "main":
        checks = f"inference_store.cli.serve.list_checks({service!r})"
        start = f"import inference_store.cli.serve; {checks}; import inference_store.{service}.run"
    code = f"{start}; import sys; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SERVICES)}
    command = [sys.executable, "-c", code]
    return frozenset(subprocess.check_output(command, env=environment, text=True).split())


def test_a_start_does_without() -> None:
    for service, reasons in NEVER.items():
        imports = list_imports(service)
        assert {name: why for name, why in reasons.items() if name in imports} == {}, service


def test_pydantic_does_not_read_our_source() -> None:
    """It would, for each model, when it is imported: `Documented` reads it when it is asked."""
    paths = SERVICES.rglob("*.py")
    assert not [path for path in paths if "use_attribute_docstrings=" in path.read_text()]
