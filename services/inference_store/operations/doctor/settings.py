"""Checks settings that are valid alone, and conflict with each other or with the environment."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from inference_store.platform.settings import is_loopback

from .finding import DoctorSettings, Finding, State, Subject, ok


@dataclass(frozen=True, slots=True)
class SettingConflict:
    """A setting conflict. `seen` and `remedy` may name settings as `{name}`."""

    state: State
    happens: Callable[[DoctorSettings], bool]
    seen: str
    remedy: str


def _is_far(settings: DoctorSettings) -> bool:
    """Return whether Postgres is on another machine, as far as its name shows."""
    return not is_loopback(urlsplit(settings.postgres_dsn.get_secret_value()).hostname)


SETTING_CONFLICTS: Sequence[SettingConflict] = (
    SettingConflict(
        State.WARNING,
        lambda of: not is_loopback(of.api_host) and of.auth == "off",
        "the api serves {api_host} without access control (AUTH=off)",
        "Set INFERENCE_STORE_AUTH=on and give keys, or bind INFERENCE_STORE_API_HOST=127.0.0.1.",
    ),
    SettingConflict(
        State.WARNING,
        lambda of: _is_far(of) and of.postgres_tls_mode in {"disable", "allow", "prefer"},
        "Postgres is elsewhere, and what is sent to it may go in the clear and to anybody"
        " (sslmode={postgres_tls_mode})",
        "Set INFERENCE_STORE_POSTGRES_TLS=verify-full, and INFERENCE_STORE_POSTGRES_CA_FILE where"
        " an authority of yours signed its certificate.",
    ),
    SettingConflict(
        State.WARNING,
        lambda of: of.tombstone_seconds < of.ingester_parked_give_up_seconds,
        "an erased inference is remembered for {tombstone_seconds} s, and an event may be parked"
        " for {ingester_parked_give_up_seconds} s: it could bring the inference back",
        "Raise INFERENCE_STORE_TOMBSTONE_SECONDS above"
        " INFERENCE_STORE_INGESTER_PARKED_GIVE_UP_SECONDS.",
    ),
    SettingConflict(
        State.WARNING,
        lambda of: of.tombstone_seconds < of.retention_interval_seconds,
        "an erased inference is forgotten after {tombstone_seconds} s, before the next run after"
        " {retention_interval_seconds} s",
        "Raise INFERENCE_STORE_TOMBSTONE_SECONDS; its default is 30 days.",
    ),
    SettingConflict(
        State.WARNING,
        lambda of: of.postgres_pool_size < 3,
        "{postgres_pool_size} connections, where an ingester uses 3 at once and retention 4",
        "Raise INFERENCE_STORE_POSTGRES_POOL_SIZE.",
    ),
    SettingConflict(
        State.WARNING,
        lambda of: of.log_level == "debug",
        "everything is logged (LOG_LEVEL=debug)",
        "Set INFERENCE_STORE_LOG_LEVEL=info when you have seen enough.",
    ),
)


async def check_settings(subject: Subject) -> list[Finding]:
    """Report every setting conflict."""
    settings = subject.settings
    return list(_find_conflicts(settings)) or [
        ok(f"{len(type(settings).model_fields)} settings, and none conflict")
    ]


def _find_conflicts(settings: DoctorSettings) -> Iterator[Finding]:
    for conflict in SETTING_CONFLICTS:
        if conflict.happens(settings):
            yield Finding(conflict.state, _fill_in(conflict.seen, settings), conflict.remedy)


def _fill_in(sentence: str, settings: DoctorSettings) -> str:
    """Fill in only the settings that a sentence names; no sentence names a secret."""
    return sentence.format_map(_Plain(settings))


class _Plain(dict[str, object]):
    def __init__(self, of: DoctorSettings) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, name: str) -> object:
        value = getattr(self._of, name)
        return f"{value:g}" if isinstance(value, float) else value
