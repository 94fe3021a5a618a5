"""Rooms import one way, and each third-party package has its home."""

import ast
from dataclasses import dataclass
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
    "uvicorn": {"api", "cli/api.py", "proxy/rest", "store/serving"},
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
            "cli/resume.py",
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
    "shtab": {"cli/completion.py"},
    "yaml": {"proxy/configuration"},
}
# Inside store: what a file is, from the lowest line up. A file imports from its own line or below.
LINES = (
    {"repeats", "traces", "metrics", "metrics_of_two", "stages", "documented"},
    {"errors", "rights", "nearest", "plural"},
    {"settings", "logs", "failpoints", "json_text", "json_spans", "long_text", "times"}
    | {"iso_durations"},
    {"serving"},
    {"tables", "layout", "statement_spans", "database", "schema", "distribution", "prepared"}
    | {"held_settings"}
    | {"distributing", "admin", "kafka", "producer_reports"},
    {"access", "model_numbers", "within_reach"},
    {"audit", "api_keys"},
    {"audit_chain"},
    {"metadata", "task_types", "operators", "blobs", "migration", "partitions", "dictionary"}
    | {"cql2", "events", "properties"},
    {
        "registrations",
        "removed_models",
        "key_registry",
        "books",
        "records",
        "set_aside",
        "sidecars",
        "unused_labels",
    },
    {"filters"},
    {"dead_letters", "parked", "indexing", "queries", "retention", "metadata_edits", "inferences"}
    | {"aggregates", "counting", "holds", "certificates"},
    {"ledger"},
    {"figures", "reconciling"},
    {"doctor"},
)


@dataclass(frozen=True)
class Source:
    """A file: its place below the package, what it imports in full, and the most dots it says."""

    place: Path
    modules: frozenset[str]
    dots: int

    @property
    def room(self) -> str:
        return self.place.parts[0]


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return [source_of(path) for path in FILES]


def source_of(path: Path) -> Source:
    place = path.relative_to(SERVICES)
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    whole = [node for node in nodes if isinstance(node, ast.Import)]
    modules = {alias.name for node in whole for alias in node.names}
    for node in froms:
        name = module_of(node, ("inference_store", *place.parts[:-1]))
        modules |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return Source(place, frozenset(modules), max((node.level for node in froms), default=0))


def module_of(node: ast.ImportFrom, package: tuple[str, ...]) -> str:
    """What it imports from, in full."""
    start = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join([*start, *([node.module] if node.module else [])])


def test_a_room_imports_only_what_it_may(sources: list[Source]) -> None:
    wrong = []
    for source in sources:
        if len(source.place.parts) == 1:
            continue
        modules = [name.split(".") for name in source.modules]
        rooms = {parts[1] for parts in modules if parts[0] == "inference_store" and len(parts) > 1}
        strange = rooms - {"__init__"} - ALLOWED.get(source.room, set())
        wrong += [f"{source.place} imports {room}" for room in sorted(strange)]
        if source.room not in ALLOWED:
            wrong.append(f"{source.place}: {source.room} is no room of this test: say what it may")
    assert not wrong, "\n".join(wrong)


def test_dots_do_not_leave_the_folder(sources: list[Source]) -> None:
    wrong = [f"{source.place}: `from ..`; say it in full" for source in sources if source.dots > 1]
    assert not wrong, "\n".join(wrong)


def test_a_package_is_imported_only_at_home(sources: list[Source]) -> None:
    wrong = [
        f"{source.place} imports {name}, whose homes are {sorted(HOMES[package])}"
        for source in sources
        for name in sorted(source.modules)
        if (package := name.split(".")[0]) in HOMES
        and not any(source.place.is_relative_to(home) for home in HOMES[package])
    ]
    assert not wrong, "\n".join(wrong)


def line_of(name: str) -> int | None:
    return next((number for number, names in enumerate(LINES) if name in names), None)


def test_inside_store_files_import_downwards(sources: list[Source]) -> None:
    wrong = []
    for source in sources:
        if source.room != "store" or source.place.name == "__init__.py":
            continue
        own = source.place.parts[1].removesuffix(".py")
        for other in sorted(imported_of_store(source) - {own}):
            here, there = line_of(own), line_of(other)
            if here is None or there is None:
                lost = own if here is None else other
                wrong.append(f"{source.place}: store/{lost} stands in no line of this test")
            elif there > here:
                wrong.append(f"{source.place}: store/{own} imports store/{other}, a line above it")
    assert not wrong, "\n".join(wrong)


def imported_of_store(source: Source) -> set[str]:
    """What a file imports of the files and folders of store."""
    modules = [name.split(".") for name in source.modules]
    return {
        parts[2]
        for parts in modules
        if parts[:2] == ["inference_store", "store"] and len(parts) > 2
    }


def test_nothing_is_named_for_nothing() -> None:
    empty = {"utils", "helpers", "common", "base", "manager", "service", "core", "misc"}
    assert not [path for path in FILES if path.stem.rstrip("s") in {e.rstrip("s") for e in empty}]


def test_a_file_is_a_room() -> None:
    crowded = [path for path in FILES if len(path.read_text().splitlines()) > 300]
    assert not crowded
