"""The questions while something else goes on, or after everything was forgotten."""

import asyncio
from pathlib import Path
from random import Random

from sqlalchemy import text
from tests.servers.postgres import PostgresServer

from inference_store.index.database import create_engine

from . import matrix
from .asker import Asker, asking
from .bodies import CASES
from .feeder import feeding
from .filters import FILTERS
from .measure import Figures

EVENTS_A_SECOND = 500
# A tenth of what there is; of ten million a million.
_ERASED_SHARE = 10
COLD_RUNS = 2
_COLD = (
    "everything",
    "equality, 90 %",
    "equality, 2 %",
    "equality, 0.001 %",
    "only in the oldest half",
    "int range, 0.1 %",
    "prefix, 0.1 % of 100 values",
    "label and score",
    "geo box, 0.2 %",
    "AND of four common",
    "AND of three anti-correlated",
)
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


async def measure_fed(
    asker: Asker, dsn: str, *, runs: int, seconds: float
) -> tuple[list[Figures], float]:
    """Measure under ingest; return the lines and how many events a second it was."""
    with feeding(dsn, EVENTS_A_SECOND) as ingest:
        lines = await matrix.measure_look_ups(asker, runs=runs)
        lines += await matrix.measure_cases(asker, (*CASES, *FILTERS), runs=runs, seconds=seconds)
    return lines, ingest.rate


async def measure_erased(
    asker: Asker, dsn: str, size: int, *, runs: int, seconds: float
) -> list[Figures]:
    """Measure counts while the oldest tenth is marked, as it is from an erasure's start to its
    end."""
    engine = create_engine(dsn, pool_size=1)
    try:
        async with engine.begin() as connection:
            await connection.execute(text(_MARK), {"most": size // _ERASED_SHARE})
        autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            await connection.execute(text("VACUUM ANALYZE erasing"))
    finally:
        await engine.dispose()
    return await matrix.measure_cases(asker, CASES, runs=runs, seconds=seconds, kinds=("count",))


_MARK = """
INSERT INTO erasing (model, uid, scope, erasure)
SELECT model, uid, 'inference', '00000000-0000-0000-0000-000000000000' FROM inference
WHERE model = (SELECT min(model) FROM registration) ORDER BY uid LIMIT :most
"""


async def measure_cold(
    server: PostgresServer, dsn: str, *, runs: int = COLD_RUNS
) -> tuple[list[Figures], bool]:
    """Measure the first page after a restart; return whether the disk's own cache was emptied as
    well."""
    lines = []
    dropped = False
    for case in (case for case in CASES if case.name in _COLD):
        answers = []
        for run in range(runs):
            await asyncio.to_thread(server.stop)
            dropped = _drop_caches()
            await asyncio.to_thread(server.start)
            async with asking(dsn) as asker:
                answers.append(await asker.page(case.make(Random(f"{case.name} cold {run}"))))
        times = sorted(1000 * answer.seconds for answer in answers)
        rows, cut = answers[-1].rows, sum(not answer.whole for answer in answers) / len(answers)
        line = Figures(
            *(case.name, "cold", len(times)),
            *(sum(times) / len(times), times[-1], times[-1], times[-1]),
            *(rows, cut),
            part=sum(not answer.whole and not answer.refused for answer in answers) / len(answers),
            refused=sum(answer.refused for answer in answers) / len(answers),
        )
        print(f"{case.name:34} cold {line.median:8.1f} ms", flush=True)
        lines.append(line)
    return lines, dropped


def _drop_caches() -> bool:
    try:
        _DROP_CACHES.write_text("1")
    except OSError:
        return False
    return True
