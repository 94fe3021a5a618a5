"""Rooms import one way, and each third-party package has its home."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[2] / "services" / "inference_store"
FILES = sorted(SERVICES.rglob("*.py"))
SERVICE_ROOMS = {"proxy", "ingester", "api", "retention"}
# The command line starts services; `local` starts processes by name and knows no inside.
ALLOWED = {
    "store": {"store"},
    "grpc_messages": {"grpc_messages"},
    **{room: {room, "store"} for room in SERVICE_ROOMS},
    "proxy": {"proxy", "store", "grpc_messages"},
    "local": {"local", "store", "grpc_messages"},
    "smoke": {"smoke", "store"},
    "cli": {"cli", "store", "local", "smoke", *SERVICE_ROOMS},
}
HOMES = {
    "aiokafka": {
        *("store/kafka", "store/doctor/kafka.py", "ingester"),
        *("smoke", "cli/smoke.py", "proxy/capture/publisher.py"),
    },
    "fastapi": {"api"},
    "fastapi_offline": {"api"},
    "starlette": {"api"},
    "uvicorn": {"api", "cli/api.py", "proxy/rest"},
    "aiohttp": {"store/admin.py", "store/kafka", "api/access/issuer.py", "proxy", "local/demo"},
    "imagesize": {"proxy/capture/datum.py"},
    "jwt": {"api/access"},
    "lark": {"store/cql2"},
    "asyncpg": {"store", "ingester/write"},
    "cryptography": {"store/certificates"},
    "sqlalchemy": {
        *("store", "api", "ingester", "retention"),
        *(
            "cli/keys.py",
            "cli/reconcile.py",
            "cli/audit.py",
            "cli/ledger.py",
            "cli/certificates.py",
        ),
    },
    "alembic": {"store/migration.py"},
    "obstore": {"store/blobs"},
    "minio": {"store/blobs"},
    "apscheduler": {"retention"},
    "cv2": {"local/demo"},
    "skimage": {"local/demo"},
    "sklearn": {"local/demo"},
    "prometheus_client": {"store"},
    "google": {"grpc_messages"},
    "grpc": {"proxy/grpc", "proxy/grpc_port.py", "proxy/omi_bridge", "local/demo"},
    "yaml": {"proxy/configuration"},
}
# Inside store: what a file is, from the lowest line up. A file imports from its own line or below.
LINES = (
    {"repeats", "traces", "metrics", "metrics_of_two", "stages"},
    {"errors", "rights", "nearest"},
    {"settings", "logs", "failpoints", "json_text", "long_text", "times"},
    {"tables", "events", "layout", "statement_spans", "database", "schema", "distribution"}
    | {"distributing", "admin", "kafka", "producer_reports"},
    {"access"},
    {"audit_chain"},
    {"metadata", "task_types", "operators", "blobs", "migration", "partitions", "dictionary"}
    | {"cql2", "properties"},
    {
        "registrations",
        "removed_models",
        "key_registry",
        "books",
        "records",
        "set_aside",
        "sidecars",
    },
    {"filters"},
    {"dead_letters", "parked", "indexing", "queries", "retention", "metadata_edits", "inferences"}
    | {"aggregates", "counting", "holds", "certificates"},
    {"ledger"},
    {"figures", "reconciling"},
    {"doctor"},
)


def room_of(path: Path) -> str:
    return path.relative_to(SERVICES).parts[0]


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, in full."""
    package = ("inference_store", *path.relative_to(SERVICES).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, f"{path}: `from ..` leaves the folder; say it in full"
            start = ".".join(package) + "." if node.level else ""
            name = start + (node.module or "")
            yield name.rstrip(".")
            yield from (f"{name.rstrip('.')}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SERVICES)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    if path.parent == SERVICES:
        return
    modules = [name.split(".") for name in imported(path)]
    rooms = {parts[1] for parts in modules if parts[0] == "inference_store" and len(parts) > 1}
    assert rooms - {"__init__"} <= ALLOWED[room_of(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SERVICES)))
def test_a_package_is_imported_only_at_home(path: Path) -> None:
    place = path.relative_to(SERVICES).as_posix()
    for name in imported(path):
        homes = HOMES.get(name.split(".")[0])
        if homes is not None:
            at_home = any(place == home or place.startswith(f"{home}/") for home in homes)
            assert at_home, f"{name} is imported in {place}; its homes are {sorted(homes)}"


def line_of(name: str) -> int:
    found = [number for number, names in enumerate(LINES) if name in names]
    assert found, f"store/{name} stands in no line of this test: give it one"
    return found[0]


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if room_of(path) == "store" and path.name != "__init__.py"],
    ids=lambda path: str(path.relative_to(SERVICES)),
)
def test_inside_store_files_import_downwards(path: Path) -> None:
    own = path.relative_to(SERVICES / "store").parts[0].removesuffix(".py")
    for name in imported(path):
        parts = name.split(".")
        if parts[:2] == ["inference_store", "store"] and len(parts) > 2 and parts[2] != own:
            assert line_of(parts[2]) <= line_of(own), f"store/{own} imports store/{parts[2]}"


def test_nothing_is_named_for_nothing() -> None:
    empty = {"utils", "helpers", "common", "base", "manager", "service", "core", "misc"}
    assert not [path for path in FILES if path.stem.rstrip("s") in {e.rstrip("s") for e in empty}]


def test_a_file_is_a_room() -> None:
    crowded = [path for path in FILES if len(path.read_text().splitlines()) > 300]
    assert not crowded
