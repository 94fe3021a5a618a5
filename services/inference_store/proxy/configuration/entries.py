"""What may stand in the configuration's file: upstreams, and how models are captured."""

from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, FilePath, model_validator

from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.task_types import TASK_TYPES, task_type_of
from inference_store.proxy.rules import Redaction, Rules, Sampling, matches

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


def _task_type(name: str) -> str:
    known_name = task_type_of(name).name
    if known_name == "unknown" and name != "unknown":
        raise ValueError(f"there is no task type {name!r}; known are {', '.join(TASK_TYPES)}")
    return known_name


def _url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in {"http", "https"} or not url.hostname or url.query or url.fragment:
        raise ValueError("expected http://host:port or https://host:port, with a path or without")
    if url.username is not None or url.password is not None:
        raise ValueError("a name or password in it would take the place of the caller's own")
    return text.rstrip("/")


def _target(text: str) -> str:
    host, _, port = text.removeprefix("grpc://").removeprefix("grpcs://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected host:port, or grpcs://host:port over TLS")
    return text


class _Entry(DocumentedModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UpstreamEntry(_Entry):
    """A model server that stands behind the proxy."""

    name: Name
    """What it is called in logs, metrics and in `models`."""
    url: Annotated[str, AfterValidator(_url)] | None = None
    """Where it answers REST."""
    grpc: Annotated[str, AfterValidator(_target)] | None = None
    """Where it answers gRPC: `host:port`; `grpcs://host:port` over TLS."""
    omi: Annotated[str, AfterValidator(_target)] | None = None
    """Where an OMI container answers, in place of `url` and `grpc`: behind a bridge of ours it
    answers V2 over both."""
    protocols: tuple[str, ...] = ("v2", "v2-grpc")
    """The protocols whose calls are captured."""
    dialect: Literal["mlserver", "triton"] | None = None
    """What its gRPC streams answer; left out: told by the messages themselves."""
    models: tuple[Name, ...] = ("*",)
    """Names of the models it serves, `*` for any part of a name. A call goes to the first upstream
    that serves its model, one that names none to the first upstream."""
    connect_seconds: Seconds = 5.0
    """How long a connection may take."""
    read_seconds: Seconds = 300.0
    """How long the upstream may be silent."""
    keepalive_seconds: Seconds = 3.0
    """How long an idle connection is kept: less than the upstream keeps it."""
    connections: Annotated[int, Field(gt=0, le=65_536)] = 256
    """Most connections at once; further calls wait for one."""
    allow_shutdown: bool = False
    """Whether OMI's Shutdown passes; else it is refused."""
    ca_file: FilePath | None = None
    """Certificates (PEM) to trust: over REST beside the system's, over gRPC in their place."""
    certificate_file: FilePath | None = None
    """Our own certificate (PEM), where it asks for one."""
    key_file: FilePath | None = None
    """Private key (PEM) of our own certificate."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.omi is not None and (self.url is not None or self.grpc is not None):
            raise ValueError("omi stands in place of url and grpc: leave them out, or omi")
        if self.url is None and self.grpc is None and self.omi is None:
            raise ValueError("it has neither url nor grpc nor omi: give url, grpc or both, or omi")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both, or neither")
        return self

    def serves(self, model: str | None) -> bool:
        """Return whether the upstream serves a model of this name."""
        return model is None or any(matches(pattern, model) for pattern in self.models)


class SamplingEntry(_Entry):
    """Which exchanges are kept."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share that is kept, 0 to 1."""
    key: Name | None = None
    """A metadata key: all exchanges with the same value are kept, or none of them."""
    always_errors: bool = False
    """Keep every exchange that failed."""
    always_below: float | None = None
    """Keep every exchange whose best score is below this."""


class RedactionEntry(_Entry):
    """What is taken out before anything is written."""

    what: Literal["metadata", "header", "path", "input"]
    """A metadata key, a request header, a path in the request's JSON, or the whole input."""
    name: str = ""
    """The key, the header, or the path, like `inputs[].parameters.user`."""
    how: Literal["drop", "hash"] = "drop"
    """`hash`: a keyed SHA-256 in the value's place; of an input, as its `data_hash`."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.what == "input") == bool(self.name):
            raise ValueError("input takes no name, everything else needs one")
        return self


class ModelEntry(_Entry):
    """How the exchanges of some models are captured; the first entry that matches counts."""

    model: Name = "*"
    """The model's name as clients call it, `*` for any part of it; `m-<id>` without case."""
    version: Name | None = None
    """Only this version; left out: every version."""
    upstream: Name | None = None
    """Only at this upstream; left out: at every one."""
    model_id: Name | None = None
    """What the store calls it; left out: the name itself."""
    project_id: Name | None = None
    """The project that it belongs to."""
    task_type: Annotated[str, AfterValidator(_task_type)] | None = None
    """What the model does; events carry it."""
    batched: bool = False
    """The first dimension of each tensor counts the inputs of a request."""
    capture: bool = True
    """Off: its calls pass through, and are not counted; where only the body names the model, they
    are read to know it, and count as sampled out."""
    strip_metadata: bool = False
    """Take `parameters.metadata` out of what goes to the model server, where there is room."""
    sampling: SamplingEntry = SamplingEntry()
    """Which exchanges are kept; left out: all."""
    redactions: tuple[RedactionEntry, ...] = ()
    """What is taken out before anything is written."""
    metadata_headers: tuple[Name, ...] = ()
    """Request headers that become metadata, in any case."""

    def matches(self, upstream: str, model: str, version: str | None) -> bool:
        """Return whether this entry applies to a call."""
        if self.upstream not in {None, upstream} or self.version not in {None, version}:
            return False
        return matches(self.model, model)

    def rules(self, dialect: str | None) -> Rules:
        """Return the entry as rules."""
        return Rules(
            model_id=self.model_id,
            project_id=self.project_id,
            task_type=self.task_type,
            batched=self.batched,
            dialect=dialect,
            capture=self.capture,
            strip_metadata=self.strip_metadata,
            sampling=Sampling(**self.sampling.model_dump()),
            redactions=tuple(Redaction(**entry.model_dump()) for entry in self.redactions),
            metadata_headers=tuple(name.lower() for name in self.metadata_headers),
        )
