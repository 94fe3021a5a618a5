"""Rooms import one way, nothing imports in a circle, and each third-party package has its home."""

import ast
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[2] / "services" / "inference_store"
FILES = sorted(SERVICES.rglob("*.py"))
# A room imports only rooms on lines above its own. Rooms on one line do not import each other.
LINES = (
    {"inference", "platform", "grpc_messages"},
    {"objects", "access"},
    {"index"},
    {"query"},
    {"erasure", "export"},
    {"operations"},
    {"proxy", "ingester", "api", "retention", "local"},
    {"cli"},
)
# The proxy holds no password of the database, and its imports show it.
ONLY = {"proxy": {"inference", "grpc_messages", "platform", "objects"}}
HOMES = {
    "aiokafka": {
        *("platform/kafka", "operations/doctor/kafka.py", "ingester"),
        *("operations/smoke", "cli/smoke.py", "proxy/capture/publisher.py"),
    },
    "fastapi": {"api"},
    "fastapi_offline": {"api"},
    "starlette": {"api"},
    "uvicorn": {"api", "cli/api.py", "proxy/rest", "platform/serving"},
    "aiohttp": {
        *("platform/admin.py", "platform/kafka", "access", "proxy", "local/demo"),
        "export/webhooks",
    },
    "imagesize": {"proxy/capture/datum.py"},
    "nanoarrow": {"export"},
    "arro3": {"export"},
    "PIL": {"api/thumbnails/worker.py"},
    "jwt": {"access"},
    "lark": {"query/cql2"},
    "asyncpg": {"index", "query", "erasure", "ingester/write"},
    "cryptography": {"erasure/log"},
    "sqlalchemy": {
        *("index", "query", "erasure", "export"),
        *("operations", "api", "ingester", "retention"),
        *(
            "cli/keys.py",
            "cli/postgres.py",
            "cli/reconcile.py",
            "cli/audit.py",
            "cli/ledger.py",
            "cli/certificates.py",
        ),
    },
    "alembic": {"index/migration.py"},
    "obstore": {"objects"},
    "minio": {"objects"},
    "apscheduler": {"retention"},
    "cv2": {"local/demo"},
    "skimage": {"local/demo"},
    "sklearn": {"local/demo"},
    "prometheus_client": {"platform"},
    "google": {"grpc_messages"},
    "grpc": {"proxy/grpc", "proxy/grpc_port.py", "proxy/omi_bridge", "local/demo"},
    "shtab": {"cli/completion.py"},
    "yaml": {"proxy/configuration"},
}


@dataclass(frozen=True)
class Source:
    """A file: its path below the package, the full names that it imports, the most dots of a
    relative import, and the full name behind each name that it binds by an import."""

    path: Path
    modules: frozenset[str]
    dots: int
    exports: dict[str, str]

    @property
    def room(self) -> str:
        return self.path.parts[0]

    @property
    def name(self) -> str:
        parts = ("inference_store", *self.path.with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    return [read_source(path) for path in FILES]


def read_source(path: Path) -> Source:
    inner = path.relative_to(SERVICES)
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    whole = [node for node in nodes if isinstance(node, ast.Import)]
    modules = {alias.name for node in whole for alias in node.names}
    package = ("inference_store", *inner.parts[:-1])
    exports = {}
    for node in froms:
        name = find_module(node, package)
        modules |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
        for alias in node.names:
            exports[".".join((*package, alias.asname or alias.name))] = f"{name}.{alias.name}"
    dots = max((node.level for node in froms), default=0)
    return Source(inner, frozenset(modules), dots, exports)


def find_module(node: ast.ImportFrom, package: tuple[str, ...]) -> str:
    """Return the full name of the module that the statement imports from."""
    start = package[: len(package) - node.level + 1] if node.level else ()
    return ".".join([*start, *([node.module] if node.module else [])])


def find_rooms_above(room: str) -> set[str]:
    """Return the rooms that a room may import."""
    line = next((number for number, rooms in enumerate(LINES) if room in rooms), None)
    assert line is not None, f"{room} is on no line of this test"
    return ONLY.get(room, set().union(*LINES[:line])) | {room}


def find_imported_rooms(source: Source) -> set[str]:
    """Return the rooms that a file imports from."""
    names = [name.split(".") for name in source.modules]
    rooms = {parts[1] for parts in names if parts[0] == "inference_store" and len(parts) > 1}
    return rooms - {"__init__"}


def test_a_room_imports_only_rooms_above_it(sources: list[Source]) -> None:
    wrong = [
        f"{source.path} imports {room}"
        for source in sources
        if len(source.path.parts) > 1
        for room in sorted(find_imported_rooms(source) - find_rooms_above(source.room))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_circle_of_imports(sources: list[Source]) -> None:
    """Modules and folders that lie beside each other import one way, at every depth.

    Imports inside functions count; a name that a package re-exports counts as its module's.
    """
    module_names = {source.name for source in sources}
    packages = [source.exports for source in sources if source.path.name == "__init__.py"]
    exports = {name: full for package in packages for name, full in package.items() if name != full}
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for source in sources:
        for name in source.modules:
            folder, importing, imported = find_fork(
                source.name, find_defining_module(name, exports, module_names)
            )
            if importing and imported:
                graphs[folder][importing].add(imported)
    circles = {folder: circle for folder, graph in graphs.items() if (circle := find_circle(graph))}
    assert not circles


def find_fork(importing: str, imported: str) -> tuple[str, str, str]:
    """Return the folder that two modules share, and the names in it that lead to each of them; a
    name is "" if the module is that folder itself."""
    paths = importing.split("."), imported.split(".")
    same = [*takewhile(lambda pair: pair[0] == pair[1], zip(*paths, strict=False))]
    first, second = (path[len(same)] if len(same) < len(path) else "" for path in paths)
    return ".".join(paths[0][: len(same)]), first, second


def find_defining_module(
    name: str, exports: Mapping[str, str], module_names: Container[str]
) -> str:
    """Return the module or package that defines a name; "" if it is not one of ours."""
    while name in exports and name not in module_names:
        name = exports[name]
    while name and name not in module_names:
        name = name.rpartition(".")[0]
    return name


def find_circle(graph: Mapping[str, set[str]]) -> str:
    """Return a circle of the graph as a sentence; "" if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " imports ".join(error.args[1][::-1])
    return ""


def test_dots_do_not_leave_the_folder(sources: list[Source]) -> None:
    wrong = [f"{source.path}: `from ..`; say it in full" for source in sources if source.dots > 1]
    assert not wrong, "\n".join(wrong)


def test_a_package_is_imported_only_at_home(sources: list[Source]) -> None:
    wrong = [
        f"{source.path} imports {name}, whose homes are {sorted(HOMES[package])}"
        for source in sources
        for name in sorted(source.modules)
        if (package := name.split(".")[0]) in HOMES
        and not any(source.path.is_relative_to(home) for home in HOMES[package])
    ]
    assert not wrong, "\n".join(wrong)


def test_no_room_has_more_than_a_fifth_of_the_lines() -> None:
    lines: dict[str, int] = {}
    for path in FILES:
        room = path.relative_to(SERVICES).parts[0]
        lines[room] = lines.get(room, 0) + len(path.read_text().splitlines())
    total = sum(lines.values())
    assert not {room: count for room, count in lines.items() if count > total / 5}


def test_nothing_is_named_for_nothing() -> None:
    empty = {"utils", "helpers", "common", "base", "manager", "service", "core", "misc"}
    assert not [path for path in FILES if path.stem.rstrip("s") in {e.rstrip("s") for e in empty}]


def test_a_file_is_a_room() -> None:
    crowded = [path for path in FILES if len(path.read_text().splitlines()) > 300]
    assert not crowded
