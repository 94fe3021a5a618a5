"""What a check is, what it finds, and how all of them are run; the check of the settings."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.settings import (
    ApiSettings,
    IngesterSettings,
    RetentionSettings,
    is_loopback,
)


class DoctorSettings(IngesterSettings, ApiSettings, RetentionSettings):
    """The settings of every service: each check reads some of them."""

    url: str | None = None
    """Address of the api, as for the client; unset: the host and port that the api binds."""


class State(StrEnum):
    """The state of a finding; each is worse than the one before."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: its state, what was seen, and what to do."""

    state: State
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of the checks."""

    settings: DoctorSettings
    engine: AsyncEngine


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `needs`: checks without which this one has nothing to examine."""

    name: str
    sentence: str
    look: Callable[[Subject], Awaitable[Sequence[Finding]]]
    needs: Sequence[str] = ()


def ok(seen: str) -> Finding:
    """Make a finding that is as it should be."""
    return Finding(State.OK, seen)


def warning(seen: str, remedy: str) -> Finding:
    """Make a finding that works now and will cause trouble."""
    return Finding(State.WARNING, seen, remedy)


def failed(seen: str, remedy: str) -> Finding:
    """Make a finding that does not work."""
    return Finding(State.FAILED, seen, remedy)


# Runs the checks concurrently, each with a deadline, so that no unavailable server hides
# another.


@dataclass(frozen=True, slots=True)
class Result:
    """The findings of a check."""

    name: str
    findings: Sequence[Finding]

    @property
    def state(self) -> State:
        """The worst of its findings."""
        return find_worst(self.findings)


def find_worst(of: Iterable[Finding | Result]) -> State:
    """Return the worst of their states."""
    return max((each.state for each in of), key=list(State).index, default=State.OK)


async def examine(
    checks: Sequence[Check], subject: Subject, *, deadline_seconds: float = 15.0
) -> Sequence[Result]:
    """Return every check's result, in the order of the checks."""
    tasks: dict[str, asyncio.Task[Result]] = {}
    for check in checks:  # each comes after those that it needs
        work = _run_check(check, subject, dict(tasks), deadline_seconds)
        tasks[check.name] = asyncio.create_task(work)
    return await asyncio.gather(*tasks.values())


async def _run_check(
    check: Check, subject: Subject, before: Mapping[str, asyncio.Task[Result]], seconds: float
) -> Result:
    for need in check.needs:
        result = await before[need]
        is_unseen = any(finding.seen.startswith("not looked at") for finding in result.findings)
        if result.state is State.FAILED or is_unseen:
            seen = f"not looked at, because of the check {need!r}"
            return Result(check.name, [warning(seen, f"Fix what {need!r} says first.")])
    try:
        async with asyncio.timeout(seconds):
            return Result(check.name, list(await check.look(subject)))
    except TimeoutError:
        seen = f"no answer within {seconds:g} s"
        remedy = "Is the server reachable from here: its address, a firewall, its load?"
        return Result(check.name, [failed(seen, remedy)])
    except Exception as error:  # one check that breaks must not hide the findings of others
        seen = f"the check itself failed: {type(error).__name__}: {error}"[:500]
        return Result(check.name, [failed(seen, "Report this as a defect.")])


@dataclass(frozen=True, slots=True)
class SettingConflict:
    """A setting conflict. `seen` has settings as `{of.name}`, and never a secret."""

    happens: Callable[[DoctorSettings], bool]
    seen: str
    remedy: str


SETTING_CONFLICTS: Sequence[SettingConflict] = (
    SettingConflict(
        lambda of: not is_loopback(of.api_host) and of.auth == "off",
        "the api serves {of.api_host} without access control (AUTH=off)",
        "Set INFERENCE_STORE_AUTH=on and give keys, or bind INFERENCE_STORE_API_HOST=127.0.0.1.",
    ),
    SettingConflict(
        lambda of: (
            not is_loopback(urlsplit(of.postgres_dsn.get_secret_value()).hostname)
            and of.postgres_tls_mode in {"disable", "allow", "prefer"}
        ),
        "Postgres is elsewhere, and what is sent to it may go in the clear and to anybody"
        " (sslmode={of.postgres_tls_mode})",
        "Set INFERENCE_STORE_POSTGRES_TLS=verify-full, and INFERENCE_STORE_POSTGRES_CA_FILE where"
        " an authority of yours signed its certificate.",
    ),
    SettingConflict(
        lambda of: of.tombstone_seconds < of.ingester_parked_give_up_seconds,
        "an erased inference is remembered for {of.tombstone_seconds:g} s, and an event may be"
        " parked for {of.ingester_parked_give_up_seconds:g} s: it could bring the inference back",
        "Raise INFERENCE_STORE_TOMBSTONE_SECONDS above"
        " INFERENCE_STORE_INGESTER_PARKED_GIVE_UP_SECONDS.",
    ),
    SettingConflict(
        lambda of: of.tombstone_seconds < of.retention_interval_seconds,
        "an erased inference is forgotten after {of.tombstone_seconds:g} s, before the next run"
        " after {of.retention_interval_seconds:g} s",
        "Raise INFERENCE_STORE_TOMBSTONE_SECONDS; its default is 30 days.",
    ),
    SettingConflict(
        lambda of: of.postgres_pool_size < 3,
        "{of.postgres_pool_size} connections, where an ingester uses 3 at once and retention 4",
        "Raise INFERENCE_STORE_POSTGRES_POOL_SIZE.",
    ),
    SettingConflict(
        lambda of: of.log_level == "debug",
        "everything is logged (LOG_LEVEL=debug)",
        "Set INFERENCE_STORE_LOG_LEVEL=info when you have seen enough.",
    ),
)


async def check_settings(subject: Subject) -> list[Finding]:
    """Report every setting conflict."""
    settings = subject.settings
    return [
        warning(conflict.seen.format(of=settings), conflict.remedy)
        for conflict in SETTING_CONFLICTS
        if conflict.happens(settings)
    ] or [ok(f"{len(type(settings).model_fields)} settings, and none conflict")]
