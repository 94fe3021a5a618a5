"""What building the package does beyond pyproject.toml: it compiles the gRPC messages."""

from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build import build

MESSAGES = Path("services/inference_store/grpc_messages")


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


class Build(build):
    # first: what it writes is copied with the package
    sub_commands = [("compile_messages", None), *build.sub_commands]  # noqa: RUF012 -- as its parent


setup(cmdclass={"build": Build, "compile_messages": CompileMessages})
