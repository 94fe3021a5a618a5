"""How late deletion is: the oldest thing that should be gone, that no run has taken yet."""

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


def _looking(settings: RetentionSettings) -> Overdue:
    return Overdue({each.setting: getattr(settings, each.setting) for each in RECORD_KINDS})


async def _seconds(engine: AsyncEngine, looking: Overdue) -> float:
    async with engine.connect() as connection:
        return await looking.seconds(connection)


async def _since(engine: AsyncEngine, interval: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE policy_version SET effective_at = now() - interval '{interval}'")
        )


async def test_what_a_policy_lets_expire_is_late_until_a_run_takes_it(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model, other = await storing.model(), await storing.model("other")
    await storing.inferences(model, 3, ago(days=5))
    await storing.inferences(other, 3, ago(days=50))
    looking = _looking(settings)
    assert await _seconds(engine, looking) == 0
    await storing.keep(model, inference="P2D")
    # nothing was late before the policy began
    assert await _seconds(engine, looking) < 60
    await _since(engine, "1 hour")
    assert _HOUR - 1 < await _seconds(engine, looking) < _HOUR + 60
    await _since(engine, "30 days")
    assert 3 * _DAY - 60 < await _seconds(engine, looking) < 3 * _DAY + _HOUR
    await retain()
    assert await _seconds(engine, looking) == 0


async def test_inputs_go_before_inferences(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings, retain: Retain
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, input="P1D", inference="P10D")
    await _since(engine, "30 days")
    looking = _looking(settings)
    assert 4 * _DAY - 60 < await _seconds(engine, looking) < 4 * _DAY + _HOUR
    await retain()
    assert await _seconds(engine, looking) == 0


async def test_what_a_hold_keeps_is_not_late(
    engine: AsyncEngine, storing: Storing, settings: RetentionSettings
) -> None:
    model = await storing.model()
    await storing.inferences(model, 3, ago(days=5))
    await storing.keep(model, inference="P2D")
    await _since(engine, "30 days")
    looking = _looking(settings)
    assert await _seconds(engine, looking) > _DAY
    async with engine.begin() as connection:
        # what it says of these is not known: NULL protects
        made = await holds.make(connection, model, holds.Asked(filter=parse_text("ok")))
        await connection.execute(
            text(
                "INSERT INTO hold (id, name, reason, filter, placed_by, placed_at, in_force_at)"
                " SELECT gen_random_uuid(), 'n', 'r', :saved, 'x', now(), now()"
            ),
            {"saved": made.text},
        )
    assert await _seconds(engine, looking) == 0
