"""Code that was written for the reference system runs, before the real api."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.request import urlopen

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.inference.events import StorageKey
from inference_store.objects import Blobs
from inference_store_client import InvalidRequest, SettingsError
from inference_store_client import chariot as istore
from inference_store_client.chariot import inference, models
from inference_store_client.chariot.inference import disconnect
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.integration.api.hallway import MODEL
from tests.integration.stored_inferences import NewInference, at, store
from tests.producer import capture, pack


@pytest.fixture
async def connected(make_app: MakeApp, frames: None) -> AsyncIterator[None]:  # noqa: ARG001
    """The functions ask a store with the hundred frames of the docs."""
    async with serve_app(make_app()) as http:
        istore.connect(str(http.base_url))
        yield
        disconnect()


def make_filter(operator: models.MetadataFilterOperator, value: str) -> models.BaseInferenceFilter:
    number = models.MetadataFilterType.INT
    return models.BaseInferenceFilter(
        metadata_filter=[models.MetadataFilter("frame_number", number, operator, value)]
    )


def read_ids(request: models.NewGetInferencesRequest) -> list[str]:
    return [each.inference_id for each in inference.filter_inferences(MODEL, request)]


@pytest.mark.usefixtures("connected")
async def test_filters_counts_pages_and_deletions() -> None:
    def ask() -> None:
        everything = models.NewGetInferencesRequest()
        assert len(read_ids(everything)) == 100
        assert inference.count_inferences(model_id=MODEL, request_body=everything) == 100
        late = make_filter(models.MetadataFilterOperator.GREATER_THAN, "9045")
        request = models.NewGetInferencesRequest(filters=late)
        assert read_ids(request) == ["frame-099", "frame-098", "frame-097", "frame-096"]
        assert inference.count_inferences(MODEL, request) == 4
        pages = models.Pagination(
            limit=5,
            offset=5,
            sort=models.PaginationSortField.CREATED_AT,
            direction=models.PaginationSortDirection.ASCENDING,
        )
        request = models.NewGetInferencesRequest(pagination=pages)
        assert read_ids(request) == [f"frame-00{number}" for number in range(5, 10)]
        assert istore.get_inferences(MODEL, request) == istore.filter_inferences(MODEL, request)
        wrong = make_filter(models.MetadataFilterOperator.LESS_THAN, "x")
        with pytest.raises(InvalidRequest):
            read_ids(models.NewGetInferencesRequest(filters=wrong))
        ask_by_every_operator()
        # a deletion is an erasure
        early = make_filter(models.MetadataFilterOperator.LESS_THAN, "8953")
        deleted = istore.bulk_delete_inferences(MODEL, filter_=early)
        assert sorted(map(str, deleted)) == ["frame-000", "frame-001", "frame-002"]
        with pytest.raises(SettingsError, match="empty filter"):
            istore.bulk_delete_inferences(MODEL, istore.BaseInferenceFilter())

    await asyncio.to_thread(ask)


def ask_by_every_operator() -> None:
    """Each is one of the store."""
    lists = {"IN": ["9000"], "NOT_IN": ["9000"], "BETWEEN": ["8960", "9000"]}
    for operator in models.MetadataFilterOperator:
        is_text = operator is models.MetadataFilterOperator.LIKE
        key = "data_source" if is_text else "frame_number"
        kind = models.MetadataFilterType.STRING if is_text else models.MetadataFilterType.INT
        value = "garden%" if is_text else lists.get(operator, "9000")
        chosen = models.BaseInferenceFilter([models.MetadataFilter(key, kind, operator, value)])
        request = models.NewGetInferencesRequest(filters=chosen)
        assert 0 < inference.count_inferences(MODEL, request) < 100, operator


async def test_one_inference_and_its_link(
    make_app: MakeApp, engine: AsyncEngine, blobs: Blobs, bucket: str
) -> None:
    blobs.put(StorageKey(bucket, "data"), b"jpeg", content_type="image/jpeg")
    items = [("n", "int", "7"), ("group", "string", "a")]
    await store(engine, NewInference("one", at(1), items, keys=(f"{bucket}/data", None, None)))
    segment = pack(capture(1, model_id="model", data=b"in a segment"))
    blobs.put(StorageKey(bucket, segment.key), segment.tar, content_type="application/x-tar")
    keys = (f"{bucket}/{segment.members[0]['data']}", None, None)
    await store(engine, NewInference("packed", at(2), keys=keys))

    def ask() -> None:
        packed = inference.get_inference("model", "packed", presign=True)
        assert packed is not None
        assert packed.presigned_url is not None
        with urlopen(packed.presigned_url, timeout=60) as answer:
            assert answer.read() == b"in a segment"
        single = inference.get_inference(model_id="model", inference_id="one", presign=True)
        assert single is not None
        assert single.presigned_url is not None
        assert single.presigned_url.startswith("http")
        assert {each.key: each.value for each in single.metadata} == {"n": "7", "group": "a"}
        assert single.request_received_at == datetime(2026, 11, 1, 0, 0, 1, tzinfo=UTC)
        assert single.data_storage_key == f"s3://{bucket}/data"
        plain = inference.get_inference("model", "one")
        assert plain is not None
        assert plain.presigned_url is None
        assert inference.get_inference("model", "two") is None
        assert inference.get_inference("no-such-model", "one") is None

    async with serve_app(make_app()) as http:
        istore.connect(str(http.base_url))
        await asyncio.to_thread(ask)
        disconnect()
