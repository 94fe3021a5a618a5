"""The lateness of deletion: the oldest thing that should be gone, that no run has taken yet."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.erasure import holds
from inference_store.erasure.housekeeping.record_kinds import RECORD_KINDS
from inference_store.erasure.select.overdue import Overdue
from inference_store.platform.settings import RetentionSettings
from inference_store.query.cql2 import parse_text

from .conftest import Retain
from .stored import Storing, ago

_DAY = 86400.0
# Ages count from when the tests were read, which may be a while ago: see `NOW`.
_HOUR = 3600.0


def _make_overdue(settings: RetentionSettings) -> Overdue:
    return Overdue({kind.setting: getattr(settings, kind.setting) for kind in RECORD_KINDS})


async def _find_overdue_seconds(engine: AsyncEngine, looking: Overdue) -> float:
    async with engine.connect() as connection:
        return await looking.measure_seconds(connection)


async def _backdate(engine: AsyncEngine, interval: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE policy_version SET effective_at = now() - interval '{interval}'")
        )


async def test_expired_inferences_are_late_until_a_run_takes_them(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model, other = await storing.model(), await storing.model("other")
    await storing.inferences(model, 3, ago(days=5))
    await storing.inferences(other, 3, ago(days=50))
    looking = _make_overdue(settings)
    assert await _find_overdue_seconds(engine, looking) == 0
    await storing.keep(model, inference="P2D")
    # nothing was late before the policy began
    assert await _find_overdue_seconds(engine, looking) < 60
    await _backdate(engine, "1 hour")
    assert _HOUR - 1 < await _find_overdue_seconds(engine, looking) < _HOUR + 60
    await _backdate(engine, "30 days")
    assert 3 * _DAY - 60 < await _find_overdue_seconds(engine, looking) < 3 * _DAY + _HOUR
    await retain()
    assert await _find_overdue_seconds(engine, looking) == 0


async def test_inputs_go_before_inferences(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, input="P1D", inference="P10D")
    await _backdate(engine, "30 days")
    looking = _make_overdue(settings)
    assert 4 * _DAY - 60 < await _find_overdue_seconds(engine, looking) < 4 * _DAY + _HOUR
    await retain()
    assert await _find_overdue_seconds(engine, looking) == 0


async def test_held_inferences_are_not_late(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, inference="P2D")
    await _backdate(engine, "30 days")
    looking = _make_overdue(settings)
    assert await _find_overdue_seconds(engine, looking) > _DAY
    async with engine.begin() as connection:
        # what it says of these is not known: NULL protects
        hold_filter = await holds.build_filter(
            connection, model, holds.HoldCriteria(filter=parse_text("ok"))
        )
        await connection.execute(
            text(
                "INSERT INTO hold (id, name, reason, filter, placed_by, placed_at, in_force_at)"
                " SELECT gen_random_uuid(), 'n', 'r', :saved, 'x', now(), now()"
            ),
            {"saved": hold_filter.text},
        )
    assert await _find_overdue_seconds(engine, looking) == 0
