"""Building the package, beyond pyproject.toml.

It compiles the gRPC messages, adds the migrations, and builds the docs.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build

MESSAGES = Path("services/inference_store/grpc_messages")
MIGRATIONS = Path("migrations")
DOCS = Path("docs")


class CompileMessages(Command):
    """Compile the `.proto` files to one file of descriptors beside them, which is package data."""

    description = "compile the gRPC messages"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False

    def initialize_options(self) -> None:
        """There are no options."""

    def finalize_options(self) -> None:
        """There are no options."""

    def run(self) -> None:
        from grpc_tools import protoc  # noqa: PLC0415 -- asking for metadata needs no compiler

        sources = sorted(map(str, MESSAGES.glob("*.proto")))
        target = f"--descriptor_set_out={MESSAGES / 'messages.binpb'}"
        if protoc.main(["protoc", f"--proto_path={MESSAGES}", target, *sources]):
            raise SystemExit("the gRPC messages do not compile: see above")

    def get_source_files(self) -> list[str]:
        return sorted(map(str, MESSAGES.glob("*.proto")))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class AddMigrations(Command):
    """Put the migrations into the built package; a source tree has them at its root."""

    description = "add the migrations to the built package"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False
    build_lib: str | None = None

    def initialize_options(self) -> None:
        """There are no options."""

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    @property
    def target(self) -> Path:
        return Path(str(self.build_lib), "inference_store", MIGRATIONS.name)

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(self.target, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(MIGRATIONS, self.target, ignore=ignored)

    def get_source_files(self) -> list[str]:
        return sorted(str(path) for path in MIGRATIONS.rglob("*.py"))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildDocs(Command):
    """Build the docs as a site into the built package; in a source tree `make docs` builds them."""

    description = "build the docs as a site"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []
    editable_mode = False
    build_lib: str | None = None

    def initialize_options(self) -> None:
        """There are no options."""

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        if self.editable_mode:
            return
        target = Path(str(self.build_lib), "inference_store", "docs_site")
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "-E", str(DOCS), str(target)]
        with tempfile.TemporaryDirectory() as doctrees:
            subprocess.run([*command, "-d", doctrees], check=True)

    def get_source_files(self) -> list[str]:
        return sorted(str(path) for path in DOCS.rglob("*.md"))

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    # The messages first: what that writes is copied with the package.
    sub_commands = [  # noqa: RUF012 -- as its parent
        ("compile_messages", None),
        *build.sub_commands,
        ("add_migrations", None),
        ("build_docs", None),
    ]


setup(
    cmdclass={
        "build": Build,
        "compile_messages": CompileMessages,
        "add_migrations": AddMigrations,
        "build_docs": BuildDocs,
    }
)
