"""The proxy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, FilePath, SecretStr

from .admin import AdminSettings
from .blobs import BlobSettings
from .connections import ConnectionSettings
from .group import Count, Port, Seconds, SettingsGroup
from .kafka import KafkaSettings
from .logs import LogSettings
from .tls_files import pair_faults


class RedactionSettings(SettingsGroup):
    """What redactions need."""

    proxy_redaction_key: SecretStr = SecretStr("")
    """Key of the hash that a redaction puts in the place of a value."""


class RegistryKeySettings(SettingsGroup):
    """The key by which a proxy reads registrations."""

    proxy_registry_key: SecretStr = SecretStr("")
    """Key that may read the models there (role `reader`); `migrate` makes the one it is given."""


class CaptureSettings(RedactionSettings, RegistryKeySettings):
    """What is done with an exchange after its answer went back."""

    proxy_capture_bytes: Count = 64 * 1024 * 1024
    """Most bytes of captures held in memory; without room a call passes through uncaptured."""
    proxy_body_bytes: Count = 16 * 1024 * 1024
    """Most bytes of one exchange's bodies that are kept; over it, it is recorded without them."""
    proxy_key_prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)*$")] = (
        "captures"
    )
    """What the keys of captured blobs begin with."""
    proxy_report_seconds: Seconds = 10.0
    """Time between two reports of the proxy's books."""
    proxy_registry_url: Annotated[str, Field(pattern=r"^(https?://[^ ]+)?$")] = ""
    """Address of the api, to read there which models are registered; unset: the file alone says."""
    proxy_registry_file: Path | None = None
    """File that keeps what was read, for a start while the api is unavailable."""
    proxy_registry_seconds: Seconds = 60.0
    """Time between two readings of the registrations."""
    proxy_spool: Literal["off", "overflow", "all"] = "off"
    """Captures go to disk first: `overflow`: when half the memory is full; `all`: every one."""
    proxy_spool_directory: Path | None = None
    """Folder of the spool; several proxies may share it."""
    proxy_spool_bytes: Count = 1024 * 1024 * 1024
    """Most bytes of the spool's folder, whoever shares it; over it captures wait in memory."""
    proxy_spool_fsync: Literal["on", "off"] = "off"
    """`on`: a capture is spooled once it is on the disk itself, and outlives a power cut."""
    proxy_grace_seconds: Seconds = 20.0
    """How long, at its end, the proxy waits for calls to finish and captures to be published."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting that needs another one."""
        yield from super().contradictions()
        if self.proxy_spool != "off" and self.proxy_spool_directory is None:
            yield f"$PROXY_SPOOL={self.proxy_spool} needs $PROXY_SPOOL_DIRECTORY"
        if self.proxy_registry_url and not self.proxy_registry_key.get_secret_value():
            yield "$PROXY_REGISTRY_URL needs $PROXY_REGISTRY_KEY: a key that may read"
        if self.proxy_body_bytes > self.proxy_capture_bytes:
            yield "$PROXY_BODY_BYTES is over $PROXY_CAPTURE_BYTES: none would be kept"


class UpstreamSettings(RedactionSettings):
    """Which model servers there are."""

    proxy_config: FilePath | None = None
    """File of upstreams and models; unset: the one upstream of the two settings below."""
    proxy_upstream: str | None = None
    """URL where the model server answers REST, where there is no file."""
    proxy_upstream_grpc: str | None = None
    """`host:port` where the model server answers gRPC, where there is no file."""
    proxy_protocols: str = "v2,v2-grpc"
    """Protocols of that model server whose calls are captured, separated by commas."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if upstreams are set twice, or not at all."""
        yield from super().contradictions()
        upstream = self.proxy_upstream or self.proxy_upstream_grpc
        if self.proxy_config is not None and upstream:
            other = "PROXY_UPSTREAM" if self.proxy_upstream else "PROXY_UPSTREAM_GRPC"
            yield f"$PROXY_CONFIG and ${other} are set: keep the file, or the other"
        if self.proxy_config is None and not upstream:
            yield "set $PROXY_UPSTREAM, $PROXY_UPSTREAM_GRPC or $PROXY_CONFIG"


class ProxySettings(
    UpstreamSettings,
    CaptureSettings,
    KafkaSettings,
    BlobSettings,
    ConnectionSettings,
    AdminSettings,
    LogSettings,
):
    """Stands before model servers and captures what goes through."""

    proxy_host: str = "127.0.0.1"
    """Address that calls come to."""
    proxy_port: Port = 8090
    """Port of REST; 0: any free one."""
    proxy_grpc_port: Port = 8091
    """Port of gRPC, open where an upstream answers it; 0: any free one."""
    proxy_tls_certificate_file: FilePath | None = None
    """Certificate (PEM, with its chain) of both ports; set: they are TLS."""
    proxy_tls_key_file: FilePath | None = None
    """Private key (PEM) of that certificate."""
    proxy_path_prefixes: Annotated[str, Field(pattern=r"^(/[^, ]+( *, */[^, ]+)*)?$")] = (
        "/api/serve/serve-model-*-pred"
    )
    """What may stand before a call's path, `*` for any part of one segment, separated by commas."""
    proxy_grpc_message_bytes: Count = 256 * 1024 * 1024
    """Largest gRPC message that passes; a larger one is refused."""
    proxy_strip_bytes: Count = 64 * 1024 * 1024
    """Most bytes of requests held to take metadata out; without room one goes on as it came."""
    proxy_admin_port: Port = 9104
    """Admin port of the proxy; 0: any free one."""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if a certificate has no key, or a key no certificate."""
        yield from super().contradictions()
        names = ("PROXY_TLS_CERTIFICATE_FILE", "PROXY_TLS_KEY_FILE")
        yield from pair_faults(names, self.proxy_tls_certificate_file, self.proxy_tls_key_file)
