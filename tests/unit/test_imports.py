"""Each third-party package has its home; import-linter, in `make lint`, holds how rooms import."""

import ast
import re
from pathlib import Path

SERVICES = Path(__file__).parents[2] / "services" / "inference_store"
FILES = sorted(SERVICES.rglob("*.py"))
HOMES = {
    "aiokafka": {
        *(
            "platform/kafka.py",
            "operations/doctor/send.py",
            "operations/doctor/send.py",
            "ingester",
        ),
        "proxy/capture/publisher.py",
    },
    "fastapi": {"api"},
    "fastapi_offline": {"api"},
    "starlette": {"api"},
    "uvicorn": {"api", "cli/api.py", "proxy/rest.py", "platform/uvicorn_server.py"},
    "aiohttp": {"platform/serving.py", "platform/kafka.py", "access", "proxy", "local/demo"},
    "imagesize": {"proxy/capture"},
    "nanoarrow": {"export"},
    "arro3": {"export"},
    "PIL": {"api/thumbnail_worker.py"},
    "jwt": {"access"},
    "lark": {"query/cql2"},
    "asyncpg": {"index", "query", "retention", "ingester/writer.py"},
    "cryptography": {"erasure/log.py"},
    "sqlalchemy": {
        *("index", "query", "erasure", "export"),
        *("operations", "api", "ingester", "retention"),
        *(
            "cli/keys.py",
            "cli/command.py",
            "cli/database.py",
            "cli/proof.py",
            "cli/upkeep.py",
        ),
    },
    "alembic": {"index/migration.py"},
    "obstore": {"objects"},
    "minio": {"objects"},
    "apscheduler": {"retention"},
    "cv2": {"local/demo"},
    "sklearn": {"local/demo"},
    "prometheus_client": {"platform"},
    "google": {"grpc_messages"},
    "grpc": {
        *("proxy/grpc", "proxy/grpc_port.py"),
        *("proxy/omi_bridge.py", "proxy/omi_container.py", "local/demo"),
    },
    "shtab": {"cli/completion.py"},
    "yaml": {"proxy/configuration.py"},
}


def list_imports(path: Path) -> set[str]:
    """Return the names of the modules that a file imports, without those of its own package."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    return names | {node.module or "" for node in froms}


def test_a_package_is_imported_only_at_home() -> None:
    seen = set()
    for path in FILES:
        inner = path.relative_to(SERVICES)
        for name in list_imports(path):
            package = name.partition(".")[0]
            if package in HOMES:
                seen.add(package)
                at_home = any(inner.is_relative_to(home) for home in HOMES[package])
                assert at_home, f"{inner} imports {name}, whose homes are {sorted(HOMES[package])}"
    assert seen == HOMES.keys()


def test_files_have_names_that_say_something_and_at_most_600_lines() -> None:
    empty = {"util", "helper", "common", "base", "manager", "service", "core", "misc"}
    assert [path for path in FILES if path.stem.rstrip("s") in empty] == []
    assert [path for path in FILES if path.read_text().count("\n") > 600] == []


def list_faces(path: Path) -> set[str]:
    """Return the modules of other rooms that a file imports, as `room.module`."""
    faces = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("inference_store."):
            for alias in node.names:
                place = Path(*f"{node.module}.{alias.name}".split(".")[1:])
                is_module = (SERVICES / place).is_dir() or (SERVICES / f"{place}.py").exists()
                faces.add(".".join((place if is_module else place.parent).parts))
    own = path.relative_to(SERVICES).parts[0]
    return {face for face in faces if face.partition(".")[0] != own}


def test_rooms_import_only_the_faces_that_the_docs_list() -> None:
    page = (SERVICES.parents[1] / "docs" / "explanation" / "architecture.md").read_text()
    table = page.split("| room | modules that other rooms import |\n|---|---|\n")[1]
    listed = set()
    for row in table.partition("\n\n")[0].splitlines():
        room, faces = (cell.strip() for cell in row.strip("|").split("|"))
        listed |= {f"{room}.{name}" for name in re.findall(r"`([^`]+)`", faces)}
        listed |= {room} if faces.startswith("the room itself") else set()
    assert listed == {face for path in FILES for face in list_faces(path)}
