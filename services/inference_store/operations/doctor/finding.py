"""What a check sees, and what every check is."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.platform.settings import ApiSettings, IngesterSettings, RetentionSettings


class DoctorSettings(IngesterSettings, ApiSettings, RetentionSettings):
    """Those of every service: each check looks at some."""


class State(StrEnum):
    """How it is; each is worse than the one before."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: how it is, what was seen, and what to do."""

    state: State
    seen: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom the checks look at."""

    settings: DoctorSettings
    engine: AsyncEngine


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `needs`: checks without which this one has nothing to look at."""

    name: str
    sentence: str
    look: Callable[[Subject], Awaitable[Sequence[Finding]]]
    needs: Sequence[str] = ()


def ok(seen: str) -> Finding:
    """As it should be."""
    return Finding(State.OK, seen)


def warning(seen: str, remedy: str) -> Finding:
    """It works, and will bite."""
    return Finding(State.WARNING, seen, remedy)


def failed(seen: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(State.FAILED, seen, remedy)
