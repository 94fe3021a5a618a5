"""The base of every group of settings. Every name begins with INFERENCE_STORE_."""

import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Self, get_args
from urllib.parse import parse_qsl, urlsplit

import structlog
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    FilePath,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

_MOST_SECONDS = (
    100 * 365 * 24 * 3600
)  # so that a time of now, moved by it, is still in the calendar
Seconds = Annotated[float, Field(gt=0, le=_MOST_SECONDS, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(ge=0, le=_MOST_SECONDS, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


PREFIX: Final = "INFERENCE_STORE_"


class SettingsGroup(BaseSettings):
    """Settings that belong together; read from the environment, else `.env`, else secret files.

    An empty value counts as unset. All errors are reported at once, with the full name of each
    setting.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        hide_input_in_errors=True,
        # A service reads one of the four groups, and only needs the names of the others.
        defer_build=True,
    )

    def contradictions(self) -> Iterator[str]:
        """Yield what does not fit together, in sentences where `$NAME` is a setting's whole name.

        A group adds its own to those of `super()`, and never a value that may be a secret. Here:
        certificates without keys, and keys without certificates.
        """
        for name in type(self).model_fields:
            if name.endswith("certificate_file"):
                begin = name.removesuffix("certificate_file")
                password = getattr(self, f"{begin}key_password", SecretStr(""))
                names = (name.upper(), f"{begin}key_file".upper())
                files = getattr(self, name), getattr(self, f"{begin}key_file")
                yield from _find_pair_faults(names, *files, password.get_secret_value())

    @model_validator(mode="wrap")
    @classmethod
    def _report_all_errors(cls, values: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        errors = []
        try:
            settings = read(values)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if not isinstance(values, dict) or not all(details["loc"] for details in errors):
                raise
            names = {details["loc"][0] for details in errors}
            settings = read({name: value for name, value in values.items() if name not in names})
        unsure = {str(details["loc"][0]) for details in errors}
        faults = [describe_error(cls, details) for details in errors]
        for text in settings.contradictions():
            if unsure.isdisjoint(name.lower() for name in _NAME.findall(text)):
                whole = _error(_NAME.sub(rf"{PREFIX}\1", text))
                faults.append(InitErrorDetails(type=whole, loc=(), input=None))
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults, hide_input=True)
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic's signature)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        assert isinstance(env_settings, EnvSettingsSource)
        assert isinstance(dotenv_settings, DotEnvSettingsSource)
        environment = {**dotenv_settings.env_vars, **env_settings.env_vars}
        files = SecretFiles(settings_cls, environment)
        return init_settings, files, env_settings, dotenv_settings


_NAME: Final = re.compile(r"\$([A-Z][A-Z0-9_]+)")
_UNITS: Final = ("seconds", "bytes", "days")
_OF_NUMBERS: Final = ("int_", "float_", "greater_", "less_", "finite_")


def describe_error(group: type[BaseModel], error: ErrorDetails) -> InitErrorDetails:
    """Return the error of one setting; for a number, with its unit and an example."""
    if isinstance(error["input"], Unreadable):
        return InitErrorDetails(type=_error(error["input"].why), loc=(), input=None)
    text = error["msg"].removeprefix("Value error, ")
    if error["type"].startswith(_OF_NUMBERS) and len(error["loc"]) == 1:
        text += _example(group, str(error["loc"][0]))
    return InitErrorDetails(type=_error(text), loc=error["loc"], input=None)


def sentences(refused: ValidationError, *setting: str) -> list[str]:
    """Return a sentence for each error, with the full names of its settings. `setting`: the one
    whose value was refused, if it was not a group of settings."""
    errors = refused.errors(include_url=False, include_input=False)
    return [_sentence((*setting, *error["loc"]), error["msg"]) for error in errors]


def _sentence(location: Sequence[str | int], message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    if not location:
        return f"{text}."
    within = ".".join(map(str, location[1:]))
    return f"{PREFIX}{str(location[0]).upper()}: {within + ': ' if within else ''}{text}."


def _error(text: str) -> PydanticCustomError:
    # pydantic reads braces as names of a context
    return PydanticCustomError("wrong_setting", "{text}", {"text": text})


def _example(group: type[BaseModel], name: str) -> str:
    unit, default = name.rpartition("_")[2], group.model_fields[name].get_default()
    unit_text = f"{unit} as " if unit in _UNITS else ""
    number = "30" if default is None else f"{default:.15g} (the default)"
    return f"; write {unit_text}a plain number, such as {number}"


MOST_BYTES = 64 * 1024


class WrongSetting(ValueError):
    """A setting is wrong; the text names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for an unreadable secret; no field accepts it, so that its text is reported."""

    why: str


def secrets_of(group: type[BaseSettings]) -> list[str]:
    """Return the fields that are secrets, in order."""
    return [name for name, field in group.model_fields.items() if _is_secret(field)]


def _is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)


class SecretFiles(PydanticBaseSettingsSource):
    """Reads the files that a group's NAME_FILE name. `environment` has lower-case names.

    If NAME is set, too, or the file cannot be read, the value is Unreadable.
    """

    def __init__(
        self, settings_cls: type[BaseSettings], environment: Mapping[str, str | None]
    ) -> None:
        super().__init__(settings_cls)
        self._environment = environment

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if not _is_secret(field):
            return None, field_name, False
        prefix = str(self.config.get("env_prefix", ""))
        setting = f"{prefix}{field_name}".upper()
        path = self._environment.get(f"{setting}_FILE".lower())
        if not path:
            return None, field_name, False
        if self._environment.get(setting.lower()):
            why = f"{setting} and {setting}_FILE are both given: keep one of them"
            return Unreadable(why), field_name, False
        return _read(f"{setting}_FILE", Path(path)), field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        values = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: value for name, value in values.items() if value is not None}


def _read(setting: str, path: Path) -> str | Unreadable:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as exc:
        return Unreadable(f"{setting}: {path} cannot be read: {exc}")
    if len(text) > MOST_BYTES:
        return Unreadable(
            f"{setting}: {path} is over {MOST_BYTES} bytes, which is too long for a secret"
        )
    secret = text.rstrip("\r\n")
    if not secret:
        return Unreadable(f"{setting}: {path} is empty")
    return secret


def file_names(prefix: str, groups: Iterable[type[BaseSettings]]) -> frozenset[str]:
    """Return every name of a NAME_FILE setting."""
    return frozenset(
        f"{prefix}{name}_file".upper() for group in groups for name in secrets_of(group)
    )


_log = structlog.get_logger()


def _holds_certificates(path: Path) -> Path:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as exc:
        raise ValueError(f"{path} holds no certificates in PEM: {exc}") from exc
    return path


CaFile = Annotated[FilePath, AfterValidator(_holds_certificates)]


def _find_pair_faults(
    names: tuple[str, str], certificate: Path | None, key: Path | None, password: str
) -> Iterator[str]:
    """Yield what is wrong, unless both files are given and belong together, or neither is given.

    `names`: of their settings, without the prefix.
    """
    if (certificate is None) != (key is None):
        present, missing = names if key is None else names[::-1]
        yield f"${present} is set and ${missing} is not: set both, or neither"
    if certificate is not None and key is not None:
        try:
            presenting(certificate, key, password)
        except (ssl.SSLError, OSError) as exc:
            yield f"${names[0]} and ${names[1]} are no pair: {exc}"


class CurrentContext(ssl.SSLContext):
    """A TLS context that reads its files again before a connection, if they have changed.

    What is unreadable or no pair changes nothing. New authorities are trusted beside the old ones,
    until the process ends.
    """

    def present(self, certificate: Path, key: Path | None, password: str = "") -> None:
        """Present a certificate to the other side. Raises ssl.SSLError and OSError."""
        # without a password, a key that has one would ask for it in the terminal
        self._read(
            lambda context: context.load_cert_chain(certificate, key, password=lambda: password),
            *filter(None, (certificate, key)),
        )

    def trust(self, ca_file: Path) -> None:
        """Trust the authorities of a file. Raises ssl.SSLError and OSError."""
        self._read(lambda context: context.load_verify_locations(ca_file), ca_file)

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        """Begin a connection: asyncio, uvloop and what is built on them come here."""
        for files, (load, seen) in list(self._loaded.items()):
            if (now := _stamp(files)) not in {seen, None}:
                self._reread(load, files, now)
        return super().wrap_bio(*arguments, **named)

    @cached_property
    def _loaded(self) -> "dict[tuple[Path, ...], tuple[_Load, _Stamp]]":
        return {}

    def _read(self, load: "_Load", *files: Path) -> None:
        stamp = _stamp(files)
        load(self)
        self._loaded[files] = load, stamp

    def _reread(self, load: "_Load", files: tuple[Path, ...], stamp: "_Stamp") -> None:
        about = {"files": [str(file) for file in files]}
        self._loaded[files] = load, stamp
        try:
            load(ssl.SSLContext(self.protocol))  # one half of a pair would stay in ours
            load(self)
        except (ssl.SSLError, OSError) as exc:
            _log.warning("a certificate is not read", action="tls_kept", error=str(exc), **about)
        else:
            _log.info("a certificate is read again", action="tls_reread", **about)


_Load = Callable[[ssl.SSLContext], None]
_Stamp = tuple[tuple[int, int], ...] | None


def _stamp(files: Iterable[Path]) -> _Stamp:
    try:
        return tuple((stat.st_mtime_ns, stat.st_ino) for stat in map(Path.stat, files))
    except OSError:
        return None


def presenting(certificate: Path, key: Path, password: str = "") -> CurrentContext:
    """Load the certificate that a server presents to its clients.

    Raises ssl.SSLError and OSError.
    """
    context = CurrentContext(ssl.PROTOCOL_TLS_SERVER)
    context.present(certificate, key, password)
    return context


def trusting(ca_file: Path | None, *, beside_system: bool = False) -> CurrentContext:
    """Return a TLS context that trusts the system's authorities, or the file's instead or in
    addition."""
    context = CurrentContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None or beside_system:
        context.load_default_certs()
    if ca_file is not None:
        context.trust(ca_file)
    return context


TLS_PARAMETERS: Final = frozenset({"sslmode", "ssl"})
_PARAMETERS: Final = TLS_PARAMETERS | {"application_name", "options", "search_path"}
_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SCHEMES: Final = frozenset({"postgresql", "postgres", "postgresql+asyncpg"})
_SPELLED: Final = "postgresql://user:password@host:port/database"


def check_dsn(dsn: str) -> None:
    """Raise ValueError if a DSN names no server, or requests something unsupported. The text quotes
    nothing: an unescaped password may be in any part."""
    try:
        parts = urlsplit(dsn)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port
    except ValueError:
        raise ValueError(f"its host or port cannot be read: write {_SPELLED}") from None
    if scheme.startswith("postgresql+") and scheme not in _SCHEMES:
        raise ValueError(f"asyncpg is the only driver: write {_SPELLED}")
    if scheme not in _SCHEMES or not host:
        raise ValueError(f"it names no Postgres server: write {_SPELLED}")
    for name, value in parse_qsl(parts.query):
        if name not in _PARAMETERS:
            raise ValueError(f"it has a parameter beside {', '.join(sorted(_PARAMETERS))}")
        if name in TLS_PARAMETERS and value not in _MODES:
            raise ValueError(f"its {name} is not one of {', '.join(_MODES)}")


def _checked(dsn: SecretStr | None) -> SecretStr | None:
    if dsn is not None:
        check_dsn(dsn.get_secret_value())
    return dsn


CheckDsn: Final = AfterValidator(_checked)
Dsn = Annotated[SecretStr, CheckDsn]
