"""Every listed conflict of settings is reported if it occurs, and none by default."""

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import create_async_engine

from inference_store.operations.doctor import DoctorSettings, State, Subject
from inference_store.operations.doctor.settings import SETTING_CONFLICTS, check_settings

PLANTED: list[dict[str, object]] = [
    {"auth": "off", "api_host": "0.0.0.0"},
    {"postgres_dsn": "postgresql://db.example/x"},
    {"ingester_parked_first_seconds": 60, "ingester_parked_longest_seconds": 30},
    {"ingester_parked_give_up_seconds": 5},
    {"tombstone_seconds": 3600, "ingester_parked_give_up_seconds": 7200},
    {"tombstone_seconds": 60, "ingester_parked_give_up_seconds": 30},
    {"postgres_pool_size": 2},
    {"ingester_batch_rows": 10},
    {"log_level": "debug"},
]


def make_subject(**changes: object) -> Subject:
    settings = DoctorSettings.model_validate(
        {"api_token": SecretStr("not-in-a-sentence"), **changes}
    )
    return Subject(settings, create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/x"))


async def test_by_default_nothing_fights() -> None:
    assert [finding.state for finding in await check_settings(make_subject())] == [State.OK]


async def test_a_line_to_postgres_that_may_be_in_the_clear() -> None:
    for changes, is_warned in (
        ({"postgres_dsn": "postgresql://db.example/x?sslmode=prefer"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "prefer"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "disable"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "require"}, False),
        ({"postgres_dsn": "postgresql://db.example/x?sslmode=verify-full"}, False),
        ({"postgres_dsn": "postgresql://[::1]/x?sslmode=prefer"}, False),
        ({"postgres_dsn": "postgresql://127.0.0.1/x", "postgres_tls": "disable"}, False),
    ):
        findings = await check_settings(make_subject(**changes))
        assert any("sslmode=" in finding.seen for finding in findings) == is_warned, changes


def test_every_fight_is_planted() -> None:
    assert len(PLANTED) == len(SETTING_CONFLICTS)


async def test_reports_settings_that_conflict() -> None:
    for number in range(len(PLANTED)):
        findings = await check_settings(make_subject(**PLANTED[number]))
        assert SETTING_CONFLICTS[number].remedy in [finding.remedy for finding in findings], number
        assert not [
            finding for finding in findings if "{" in finding.seen or "not-in-a" in finding.seen
        ], number
