"""Reads the proxy's configuration from a file, or from the environment."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FilePath,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from inference_store.inference.field_docs import DocumentedModel
from inference_store.inference.nearest import name_nearest, nearest
from inference_store.inference.task_types import TASK_TYPES, task_type_of
from inference_store.platform.settings import PREFIX, WrongSetting
from inference_store.proxy.protocols import PROTOCOLS


def matches(pattern: str, model: str) -> bool:
    """Return whether a model's name matches a pattern; the reference platform's `m-<id>` ignores
    case."""
    if pattern.lower().startswith("m-"):
        return fnmatchcase(model.lower(), pattern.lower())
    return fnmatchcase(model, pattern)


MOST_BYTES = 1 << 20
Location = tuple[int | str, ...]
"""Names and indexes from the root, like pydantic's `loc`."""


class WrongConfiguration(WrongSetting):
    """The file cannot be used; the text names it, the line and the remedy."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a name that is there twice: YAML would keep the last without an error."""
        names: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in names:
                sentence = f"{key.value!r} is there twice"
                raise yaml.constructor.ConstructorError(None, None, sentence, key.start_mark)
            names.add(str(key.value))
        return super().construct_mapping(node, deep)


class Document:
    """One file, read. Raises WrongConfiguration."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_bytes()
            if len(text) > MOST_BYTES:
                raise WrongConfiguration(f"{path} has more than {MOST_BYTES:,} bytes")
            loader = _Loader(text)
            self._root = loader.get_single_node()
            self.value = None if self._root is None else loader.construct_document(self._root)
        except OSError as exc:
            raise WrongConfiguration(f"{path} cannot be read: {exc.strerror}") from None
        except yaml.MarkedYAMLError as exc:
            mark = exc.problem_mark or exc.context_mark
            where = f", line {mark.line + 1}" if mark else ""
            raise WrongConfiguration(f"{path}{where}: {exc.problem or exc.context}") from None
        except (yaml.YAMLError, RecursionError, ValueError) as exc:
            raise WrongConfiguration(f"{path} is not YAML: {exc}") from None

    def describe_error(self, location: Location, message: str) -> str:
        """Return a sentence about the value at a location, or about the nearest one that exists."""
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
        node, line = self._root, 1
        for part in location:
            pairs: dict[Any, Any] = {}
            if isinstance(node, yaml.MappingNode):
                pairs = {str(key.value): (key, value) for key, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                pairs = {at: (item, item) for at, item in enumerate(node.value)}
            if part not in pairs:
                break
            key, node = pairs[part]
            line = key.start_mark.line + 1
        return f"{self._path}, line {line}: {name.lstrip('.') or 'it'}: {message}"


Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


def _task_type(name: str) -> str:
    known_name = task_type_of(name).name
    if known_name == "unknown" and name != "unknown":
        raise ValueError(f"there is no task type {name!r}; known are {', '.join(TASK_TYPES)}")
    return known_name


def _protocol(name: str) -> str:
    if name not in PROTOCOLS:
        known = ", ".join(sorted(PROTOCOLS))
        raise ValueError(f"there is no protocol {name!r}; known are {known}")
    return name


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
    cloud_events: Annotated[str, Field(pattern=r"^/[^ ?#]*$")] | None = None
    """Path at which the REST port takes the CloudEvents of a request logger, in place of `url` and
    `grpc`; the bodies tell their protocol."""
    protocols: tuple[Annotated[str, AfterValidator(_protocol)], ...] = ("v2", "v2-grpc")
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
            raise ValueError("omi replaces url and grpc: leave out either them or omi")
        others = (self.url, self.grpc, self.omi)
        if self.cloud_events is not None and any(others):
            raise ValueError("cloud_events replaces url, grpc and omi: make it an entry of its own")
        if not any((*others, self.cloud_events)):
            sentence = "it has neither url nor grpc nor omi nor cloud_events"
            raise ValueError(f"{sentence}: give url, grpc or both, or one of the others")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both, or neither")
        return self

    def serves(self, model: str | None) -> bool:
        """Return whether the upstream serves a model of this name."""
        is_any = model is None or any(matches(pattern, model) for pattern in self.models)
        return is_any and self.cloud_events is None


class Sampling(_Entry):
    """Which exchanges are kept."""

    share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share that is kept, 0 to 1."""
    key: Name | None = None
    """A metadata key: all exchanges with the same value are kept, or none of them."""
    always_errors: bool = False
    """Keep every exchange that failed."""
    always_below: float | None = None
    """Keep every exchange whose best score is below this."""


class Redaction(_Entry):
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


class Rules(_Entry):
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
    sampling: Sampling = Sampling()
    """Which exchanges are kept; left out: all."""
    redactions: tuple[Redaction, ...] = ()
    """What is taken out before anything is written."""
    metadata_headers: tuple[Annotated[Name, AfterValidator(str.lower)], ...] = ()
    """Request headers that become metadata, in any case."""


_EVERYTHING = Rules()


def find_rules(entries: Sequence[Rules], model: str, version: str | None) -> Rules:
    """Return the rules of a model, of those of its upstream."""
    for rules in entries:
        if rules.version in {None, version} and matches(rules.model, model):
            return rules
    return _EVERYTHING


def join_redactions(entries: Sequence[Rules]) -> tuple[Redaction, ...]:
    """Return the redactions of several models; one that is not captured counts as one whose input
    is dropped."""
    redactions = [redaction for rules in entries for redaction in rules.redactions]
    if not all(rules.capture for rules in entries):
        redactions.append(Redaction(what="input"))
    return tuple(dict.fromkeys(redactions))


class _File(_Entry):
    upstreams: Annotated[tuple[UpstreamEntry, ...], Field(min_length=1)]
    models: tuple[Rules, ...] = ()


class Configuration:
    """The upstreams and the rules of a proxy."""

    def __init__(self, upstreams: Sequence[UpstreamEntry], models: Sequence[Rules] = ()) -> None:
        # a call that no upstream serves goes to the first: to one that can answer
        ordered = sorted(upstreams, key=lambda entry: entry.cloud_events is not None)
        self.upstreams, self.models = tuple(ordered), tuple(models)

    def upstream(self, model: str | None) -> UpstreamEntry:
        """Return the first upstream that serves the model; else the first of all, which answers
        that it does not."""
        return next((entry for entry in self.upstreams if entry.serves(model)), self.upstreams[0])

    def rules(self, upstream: str, model: str, version: str | None) -> Rules:
        """Return the rules of a model's exchanges at an upstream."""
        return find_rules(self.list_rules(upstream), model, version)

    def list_rules(self, upstream: str) -> Sequence[Rules]:
        """Return the rules of all models at an upstream, in order."""
        return [rules for rules in self.models if rules.upstream in {None, upstream}]


def read_configuration_file(path: Path, *, has_key: bool = True) -> Configuration:
    """Return the configuration in a file. `has_key`: there is a key for the hashes of redactions.

    Raises WrongConfiguration, which names each mistake's line.
    """
    document = Document(path)
    if not isinstance(document.value, dict):
        raise WrongConfiguration(document.describe_error((), "expected `upstreams:` and `models:`"))
    try:
        file = _File.model_validate(document.value)
        mistakes = list(_find_mistakes(file, has_key=has_key))
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        # a list whose entries are wrong is also too short: that is no mistake of its own
        outside = {e["loc"][:length] for e in errors for length in range(len(e["loc"]))}
        found = [error for error in errors if error["loc"] not in outside]
        mistakes = [(error["loc"], _describe_error(error)) for error in found]
    if mistakes:
        sentences = [document.describe_error(*mistake) for mistake in mistakes]
        raise WrongConfiguration("\n".join(sentences))
    return Configuration(file.upstreams, file.models)


_SETTINGS: Mapping[str, str] = {"grpc": "PROXY_UPSTREAM_GRPC", "protocols": "PROXY_PROTOCOLS"}


def build_configuration(
    url: str | None, grpc: str | None, protocols: Collection[str], events: str = ""
) -> Configuration:
    """Return the configuration without a file: of one upstream, of CloudEvents at a path, or of
    both. Raises WrongConfiguration, which names each mistake."""
    logged = [UpstreamEntry(name="cloudevents", cloud_events=events)] if events else []
    if logged and url is None and grpc is None:
        return Configuration(logged)
    try:
        entry = UpstreamEntry(name="upstream", url=url, grpc=grpc, protocols=tuple(protocols))
    except ValidationError as exc:
        mistakes = [
            f"{PREFIX}{_SETTINGS.get(str([*error['loc'], ''][0]), 'PROXY_UPSTREAM')}: "
            f"{_describe_error(error)}"
            for error in exc.errors(include_url=False, include_input=False)
        ]
        raise WrongConfiguration("\n".join(mistakes)) from None
    return Configuration([entry, *logged])


_INSIDE: Mapping[str, type[BaseModel]] = {
    "upstreams": UpstreamEntry,
    "models": Rules,
    "sampling": Sampling,
    "redactions": Redaction,
}


def _describe_error(error: ErrorDetails) -> str:
    if error["type"] != "extra_forbidden":
        return error["msg"].removeprefix("Value error, ")
    *way, name = (part for part in error["loc"] if isinstance(part, str))
    entry = _INSIDE[way[-1]] if way else _File
    near = nearest(name, tuple(entry.model_fields))
    return f"there is no such name here{f'; {name_nearest(near)}' if near else ''}"


def _find_mistakes(file: _File, *, has_key: bool) -> Iterator[tuple[Location, str]]:
    """Yield what no entry shows by itself."""
    names = [upstream.name for upstream in file.upstreams]
    for index, upstream in enumerate(file.upstreams):
        if upstream.name in names[:index]:
            yield ("upstreams", index, "name"), f"there are two upstreams {upstream.name!r}"
        if upstream.cloud_events in {each.cloud_events for each in file.upstreams[:index]} - {None}:
            path = upstream.cloud_events
            yield ("upstreams", index, "cloud_events"), f"two upstreams have the path {path}"
    for index, rules in enumerate(file.models):
        if rules.upstream not in {None, *names}:
            known = ", ".join(sorted(set(names)))
            sentence = f"there is no upstream {rules.upstream!r}; known are {known}"
            yield ("models", index, "upstream"), sentence
        for at, redaction in enumerate(rules.redactions):
            if redaction.how == "hash" and not has_key:
                sentence = "a hash needs a key: set INFERENCE_STORE_PROXY_REDACTION_KEY"
                yield ("models", index, "redactions", at), f"{sentence}, or drop the value"
