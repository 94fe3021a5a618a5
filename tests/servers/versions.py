"""Which servers the tests run against, and where each lies once it is there."""

import os
from pathlib import Path

KAFKA_VERSION = "4.1.0"
KAFKA_SCALA_VERSION = "2.13"
SLF4J_VERSION = "1.7.36"
MAVEN_DEPENDENCY_PLUGIN_VERSION = "3.8.1"
OLDEST_JAVA = 17

MINIO_VERSION = "20260212201848-7aac2a2c5b7c"
MINIO_MODULE = f"github.com/minio/minio@v0.0.0-{MINIO_VERSION}"
OLDEST_GO = (1, 24)

POSTGRES_VERSIONS = range(15, 19)

REQUIRE_SERVERS = "INFERENCE_STORE_REQUIRE_SERVERS"
SERVERS_CACHE = "INFERENCE_STORE_SERVERS_CACHE"


class MissingServer(Exception):
    """A real server cannot be had on this machine; the text is a sentence that says why."""


def servers_are_required() -> bool:
    """Whether a missing server fails the run: in CI, and wherever it is asked for."""
    return os.environ.get("CI") == "true" or os.environ.get(REQUIRE_SERVERS) == "1"


def cache_folder(server: str, version: str) -> Path:
    """Where this version of the server lies, or will lie."""
    default = Path.home() / ".cache" / "inference-store" / "servers"
    return Path(os.environ.get(SERVERS_CACHE) or default) / f"{server}-{version}"
