"""What a pending policy keeps is kept at once: the story of two policies whose graces end apart."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update

from inference_store.erasure import runs
from inference_store.index.tables import inference, policy_version
from inference_store.objects import Blobs
from inference_store.platform.settings import ApiSettings, RetentionSettings
from tests.integration.retention.stored import Storing
from tests.integration.stored_inferences import NewInference
from tests.settings import make_settings

from .conftest import Api

_NOW = datetime.now(UTC).replace(microsecond=0)
_MODEL, _PROJECT = "/v1/models/hall/retention-policy", "/v1/projects/building/retention-policy"
_YEAR = {"rules": [{"name": "year", "keep_inference": "P1Y"}]}
_REVIEWED = {"name": "reviewed", "filter": "reviewed", "keep_inference": "P2Y"}
_TWO_YEARS = {"rules": [{**_REVIEWED, "types": {"reviewed": "bool"}}, {"keep_inference": "P9M"}]}


async def _begin(api: Api, level: str) -> None:
    """Let the grace of a pending policy end."""
    here = policy_version.c
    ended = update(policy_version).where(here.level == level, here.effective_at > func.now())
    await api.execute(ended.values(effective_at=func.now()))


async def _count(api: Api) -> int:
    return int(await api.scalar(select(func.count()).select_from(inference)) or 0)


async def test_a_pending_policy_keeps_what_a_wider_one_would_take(
    api: Api, settings: Callable[..., ApiSettings], blobs: Blobs
) -> None:
    await api.store(
        *(_make_inference(n, 500, [("reviewed", "bool", "true")]) for n in range(10)),
        *(_make_inference(n, 500) for n in range(10, 15)),
        *(_make_inference(n, 300) for n in range(15, 18)),
    )
    await api.call("PUT", "/v1/models/hall", {"project_id": "building"})
    to = settings()
    names = ("postgres_dsn", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    retention = make_settings(RetentionSettings, **{name: getattr(to, name) for name in names})

    async def run() -> int:
        await api.transact(runs.request_run, None)
        await Storing(api.engine, blobs, retention).lead(turns=1, scheduled=False)
        return await _count(api)

    year = await api.call("PUT", _PROJECT, _YEAR)
    assert (year["state"], year["would_delete"]["inferences"]["count"]) == ("pending", 15)
    previewed = await api.ask(f"{_MODEL}/preview", _TWO_YEARS)
    put = await api.call("PUT", _MODEL, _TWO_YEARS)
    for answer in (previewed, put):
        assert answer["would_delete"]["inferences"]["count"] == 8
        [warning] = answer["warnings"]
        assert "The policy of project 'building' is pending until" in warning
        assert year["effective_at"][:19] in warning
    assert put["state"] == "pending"
    kept = await api.read("/v1/models/hall/inferences/id-0/retention")
    assert (kept["decided_by"], kept["pending"]["decided_by"]["name"]) == (None, "reviewed")
    assert kept["pending"]["begins_at"] == put["effective_at"]
    assert datetime.fromisoformat(kept["inference_goes_at"]) > _NOW + timedelta(days=200)
    gone = await api.read("/v1/models/hall/inferences/id-12/retention")
    assert gone["inference_goes_at"] == put["effective_at"]
    assert await run() == 18
    await _begin(api, "project")
    kept = await api.read("/v1/models/hall/inferences/id-0/retention")
    assert (kept["decided_by"]["name"], kept["pending"]["decided_by"]["name"]) == (
        "year",
        "reviewed",
    )
    assert datetime.fromisoformat(kept["inference_goes_at"]) > _NOW + timedelta(days=200)
    assert await run() == 13
    await _begin(api, "model")
    assert await run() == 10


def _make_inference(number: int, days: float, metadata: Any = ()) -> NewInference:
    at = _NOW - timedelta(days=days)
    return NewInference(f"id-{number}", at, metadata, model_id="hall")
