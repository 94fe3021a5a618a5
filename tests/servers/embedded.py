"""Stand-ins for a missing Kafka or MinIO: the servers of the embedded stack."""

import ctypes
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from inference_store.local.folder import LocalFolder
from inference_store.local.servers import _load_library, find_library, start_s3

from .kafka import Kafka
from .minio import S3
from .ports import free_port

_PRODUCER = 0


class EmbeddedKafka(Kafka):
    """The mock broker of librdkafka, in this process. It stores and deletes nothing.

    It differs from that of the demo only in that it creates topics while it runs.
    """

    real = False

    def __init__(self) -> None:
        self._library = _load_library(find_library())
        self._library.rd_kafka_destroy.argtypes = (ctypes.c_void_p,)
        super().__init__("")

    def __enter__(self) -> Self:
        library, error_text = self._library, ctypes.create_string_buffer(512)
        handle = library.rd_kafka_new(_PRODUCER, library.rd_kafka_conf_new(), error_text, 512)
        if not handle:
            raise RuntimeError(error_text.value.decode())
        self._handle = handle
        self._cluster = library.rd_kafka_mock_cluster_new(handle, 1)
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        address = library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        self.bootstrap_servers = address.decode()
        return self

    def __exit__(self, *_: object) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._handle)

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        if settings:
            raise NotImplementedError("the embedded broker keeps no settings of a topic")
        error = self._library.rd_kafka_mock_topic_create(
            self._cluster, name.encode(), partitions, 1
        )
        if error != 0:
            raise RuntimeError(f"topic {name} was not made: error {error}")
        return name

    def delete_topic(self, name: str) -> None:
        raise NotImplementedError("the embedded broker deletes no topics")


class EmbeddedS3(S3):
    """`rclone serve s3`: no versions, no locks."""

    real = False

    def __init__(self) -> None:
        super().__init__("", "", "")

    def __enter__(self) -> Self:
        self._folder = LocalFolder(Path(tempfile.mkdtemp(prefix="inference-store-s3-")))
        self._folder.make()
        server = start_s3(self._folder, free_port(), ())
        self._running = server.running
        self.endpoint = server.endpoint
        self.access_key, self.secret_key = server.access_key, server.secret_key
        return self

    def __exit__(self, *_: object) -> None:
        self._running.stop()
        shutil.rmtree(self._folder.path, ignore_errors=True)
