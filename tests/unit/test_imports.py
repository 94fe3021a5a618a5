"""Each third-party package has its home; import-linter, in `make lint`, holds how rooms import."""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from inference_store.api.answer import list_kinds
from inference_store.platform.failpoints import FAILPOINTS
from tests.e2e.capture.test_replays import REPLAY_FAILPOINTS
from tests.e2e.faults.deletion.test_kills import DELETION_FAILPOINTS
from tests.e2e.faults.test_ingester_failpoints import INGESTER_FAILPOINTS
from tests.integration.api.test_edits_and_erasures import PLACES
from tests.integration.erasure.ledger.test_services import LEDGER_FAILPOINTS
from tests.integration.operations.reconcile.test_orphans import ORPHAN_FAILPOINTS
from tests.integration.operations.reconcile.test_rebuild import REBUILD_FAILPOINTS
from tests.integration.retention.test_exports import EXPORT_FAILPOINTS, REMOVAL_FAILPOINTS
from tests.integration.retention.test_segment_copies import COPY_FAILPOINTS

ROOT = Path(__file__).parents[2]
SERVICES = ROOT / "services" / "inference_store"
TESTS = ROOT / "tests"
FILES = sorted(SERVICES.rglob("*.py"))
HOMES = {
    "aiokafka": {
        *("platform/kafka.py", "operations/doctor/send.py", "ingester"),
        "proxy/capture/publisher.py",
    },
    "fastapi": {"api"},
    "fastapi_offline": {"api"},
    "starlette": {"api"},
    "uvicorn": {"api", "proxy/rest.py", "platform/uvicorn_server.py"},
    "aiohttp": {"platform/kafka.py", "access", "proxy", "replay", "local/demo"},
    "imagesize": {"proxy/capture"},
    "nanoarrow": {"export", "truth/rows.py"},
    "arro3": {"export", "truth/rows.py"},
    "PIL": {"api/thumbnail_worker.py", "local/demo"},
    "jwt": {"access"},
    "lark": {"query/cql2"},
    "asyncpg": {"index", "query", "retention", "ingester/writer.py"},
    "cryptography": {"erasure/log.py"},
    "sqlalchemy": {
        *("index", "query", "erasure", "export"),
        *("operations", "api", "ingester", "replay", "retention", "truth"),
        *("cli/keys.py", "cli/command.py", "cli/database.py", "cli/proof.py", "cli/upkeep.py"),
    },
    "alembic": {"index/migration.py"},
    "obstore": {"objects"},
    "minio": {"objects"},
    "cv2": {"local/demo"},
    "prometheus_client": {"platform"},
    "google": {"grpc_messages"},
    "grpc": {"proxy/grpc", "proxy/omi_bridge.py", "replay/grpc_calls.py", "local/demo"},
    "shtab": {"cli/command.py"},
    "yaml": {"proxy/configuration.py"},
}


# Behind the faces: what starts or steps a service in a test of a whole part, or holds a limit that
# such a test lowers. The list may only become shorter.
STEPPED = {
    "api": "access accounting answer app authentication conditions drift http inference_models "
    "metadata_changes metadata_edits queries routing streams thumbnails",
    "ingester": "arrivals batch kafka_consumer reports",
    "objects": "links transfers",
    "operations": "doctor.checks",
    "cli": "upkeep",
    "proxy": "capture capture.publisher capture.registrations capture.segments "
    "configuration event_intake exchange grpc grpc.server protocols protocols.v2_grpc rest "
    "rest_messages routing",
    "query": "aggregates.collector aggregates.run evaluation.boxes filters.operands "
    "filters.relations stored_counts",
    "retention": "batch_eraser certifier eraser exporter housekeeping leader orphan_eraser "
    "residual segment_copier watched_views",
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
    own = path.relative_to(SERVICES).parts[0] if path.is_relative_to(SERVICES) else ""
    faces = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("inference_store."):
            for alias in node.names:
                place = Path(*f"{node.module}.{alias.name}".split(".")[1:])
                is_module = (SERVICES / place).is_dir() or (SERVICES / f"{place}.py").exists()
                faces.add(".".join((place if is_module else place.parent).parts))
    return {face for face in faces if face.partition(".")[0] != own}


def test_rooms_import_only_the_faces_that_the_docs_list() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    table = page.split("| room | modules that other rooms import |\n|---|---|\n")[1]
    listed = set()
    for row in table.partition("\n\n")[0].splitlines():
        room, faces = (cell.strip() for cell in row.strip("|").split("|"))
        listed |= {f"{room}.{name}" for name in re.findall(r"`([^`]+)`", faces)}
        listed |= {room} if faces.startswith("the room itself") else set()
    assert listed == {face for path in FILES for face in list_faces(path)}
    whole_parts = (TESTS / room for room in ("integration", "e2e"))
    tested = {f for room in whole_parts for path in room.rglob("*.py") for f in list_faces(path)}
    stepped = {f"{room}.{name}" for room, names in STEPPED.items() for name in names.split()}
    assert tested - listed == stepped


# No pattern has a possessive quantifier or an atomic group.
#
# Python before 3.11.5 backtracks wrongly within them (CPython gh-106052): what should match does
# not, in silence, and Debian 12 has Python 3.11.2.

# `++` is one behind what can be repeated: a class, a group, a dot or an escape, as in `\w++`.
POSSESSIVE = re.compile(r"(?<!\\)(?:[*?}]|[\]).]\+|\\\w\+)\+|\(\?>")


def test_no_pattern_has_one() -> None:
    for pattern in (r"[^a]*+", "(?:a|b)++", r"\w++", ".++", "a?+", "a{1,3}+", "(?>a)"):
        assert POSSESSIVE.search(pattern), pattern
    for pattern in (r"[^a]*", "(?:a|b)+", r"\++", r"\*+", "g++", "(?=a)", r"a\?+"):
        assert not POSSESSIVE.search(pattern), pattern
    texts = [path.read_text() for path in (ROOT / "services").rglob("*.lark")]
    for folder in ("services", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            constants = [node for node in ast.walk(ast.parse(path.read_text()))
                         if isinstance(node, ast.Constant)]  # fmt: skip
            texts += [str(node.value) for node in constants]
    assert len(texts) > 1000
    assert not [text for text in texts if POSSESSIVE.search(text)]


# Each failpoint of the product is listed, and in a chain of kills.

CHAINS = [
    *(DELETION_FAILPOINTS, INGESTER_FAILPOINTS, PLACES, LEDGER_FAILPOINTS, ORPHAN_FAILPOINTS),
    *(REBUILD_FAILPOINTS, EXPORT_FAILPOINTS, REMOVAL_FAILPOINTS, COPY_FAILPOINTS),
    REPLAY_FAILPOINTS,
]


def test_each_failpoint_is_listed_and_killed_at() -> None:
    passed = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if getattr(getattr(node, "func", None), "id", "") in {"failpoint", "failpoint_of_task"}:
                arguments = getattr(node, "args", ())
                passed |= {each.value for each in arguments if isinstance(each, ast.Constant)}
    assert passed == set(FAILPOINTS)
    assert {name for chain in CHAINS for name in chain} == set(FAILPOINTS)


# Every name in the words of a refusal is one that its reader knows.
OPENAPI = ROOT / "docs" / "reference" / "openapi.json"


def _iterate_names(schema: Any) -> Iterator[str]:
    """Yield the names of all fields, parameters and values in a part of the OpenAPI."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        yield from [schema["name"]] if isinstance(schema.get("name"), str) else []
        yield from (word for word in schema.get("enum", []) if isinstance(word, str))
        for part in schema.values():
            yield from _iterate_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _iterate_names(part)


def _iterate_refusals() -> Iterator[tuple[str, str]]:
    """Yield the words of each refusal in the services, with its place."""
    kinds = {"Fault", "Refusal", *(kind.__name__ for kind in list_kinds())}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in kinds:
                    pass
                case ast.Assign(targets=[ast.Name(id="message" | "detail" | "why")]):
                    pass
                case _:
                    continue
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield place, " ".join(text for text in texts if isinstance(text, str))


def test_refusals_name_no_internals() -> None:
    of_examples = {"frame_number"}
    known = of_examples | set(_iterate_names(json.loads(OPENAPI.read_text())))
    refusals = list(_iterate_refusals())
    assert len(refusals) > 100
    for place, words in refusals:
        for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", words):
            assert name in known, f"{place} names {name}, which is nothing of the api"


# The version is in pyproject.toml; other files repeat it.
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
# An image of ours, as compose, the docs, the examples and the chart name it.
_IMAGE = re.compile(r"inference-store:(\d+\.\d+[\w.]*)")
_PATTERNS = ("*.md", "*.yaml", "*.example", "docs/**/*", "examples/*", "helm/**/*", "Dockerfile")
# Bytecode is beside an example once a test has imported it.
_NO_TEXT = {".jpg", ".png", ".pyc"}


def test_the_package_the_chart_and_the_image_have_it() -> None:
    assert version("inference-store") == VERSION
    chart = yaml.safe_load((ROOT / "helm" / "inference-store" / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    command = ["make", "--no-print-directory", "-C", str(ROOT), "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{VERSION}\n"
    assert "ARG VERSION=unknown\n" in (ROOT / "Dockerfile").read_text()
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in {"Unreleased", VERSION}


def test_the_readme_installs_what_a_release_publishes() -> None:
    """The image where the chart looks for it, and the chart below it, by the workflow's names."""
    values = yaml.safe_load((ROOT / "helm/inference-store/values.yaml").read_text())
    image, readme = values["image"]["repository"], (ROOT / "README.md").read_text()
    assert f"\nhelm install store oci://{image}/charts/inference-store --version" in readme
    assert f"\ndocker pull {image}:{VERSION}\n" in readme
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    assert f"REGISTRY: {image.partition('/')[0]}\n" in workflow
    assert 'image=$REGISTRY/${GITHUB_REPOSITORY,,}"' in workflow
    assert '"oci://$IMAGE/charts"' in workflow


def test_every_name_of_an_image_has_it() -> None:
    paths = {path for pattern in _PATTERNS for path in ROOT.glob(pattern) if path.is_file()}
    texts = {path: path.read_text() for path in paths if path.suffix not in _NO_TEXT}
    names = [(path, name) for path, text in texts.items() for name in _IMAGE.findall(text)]
    assert len(names) > 5
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in names if name != VERSION]
