"""The versions of the servers of the tests, and the folder of each."""

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
    """A real server is not available on this machine; the text is a sentence that says why."""


def servers_are_required() -> bool:
    """Return whether a missing server fails the run: in CI, and if the variable says so."""
    return os.environ.get("CI") == "true" or os.environ.get(REQUIRE_SERVERS) == "1"


def cache_folder(server: str, version: str) -> Path:
    """Return the folder for this version of a server, which may not exist yet."""
    default = Path.home() / ".cache" / "inference-store" / "servers"
    return Path(os.environ.get(SERVERS_CACHE) or default) / f"{server}-{version}"
