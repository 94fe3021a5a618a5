"""Asks a real api over HTTP, as a client does, by the clock."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import UUID

import asyncpg
import httpx
from tests.servers.minio import S3, MinioServer

from benchmarks.servers import BUCKET, start_api

from .population import MODELS
from .questions import Body

PAGE = 50


@dataclass(frozen=True, slots=True)
class Answer:
    """One question, answered. `rows`: of the page, or the count; `whole`: time did not run out."""

    seconds: float
    rows: int
    whole: bool = True
    refused: bool = False
    """It answered nothing: a 503, its time was over."""


def _refuse(seconds: float) -> Answer:
    return Answer(seconds, 0, whole=False, refused=True)


class Asker:
    """One client: questions about the model that has 70 % of all."""

    def __init__(self, http: httpx.AsyncClient, postgres: asyncpg.Connection, model: int) -> None:
        self.http = http
        self._postgres = postgres
        self._model = model
        self._inferences = f"/v1/models/{quote(MODELS[0])}/inferences"

    async def page(self, body: Body) -> Answer:
        """Ask for the first page of 50."""
        seconds, answer = await self._post("query", {**body, "limit": PAGE})
        if answer is None:
            return _refuse(seconds)
        return Answer(seconds, len(answer["items"]), whole=answer["searched_back_to"] is None)

    async def count(self, body: Body) -> Answer:
        """Ask how many there are."""
        seconds, answer = await self._post("count", body)
        return _refuse(seconds) if answer is None else Answer(seconds, answer["count"])

    async def aggregate(self, body: Body) -> Answer:
        """Ask for figures of all that match."""
        seconds, answer = await self._post("aggregate", body)
        return _refuse(seconds) if answer is None else Answer(seconds, len(answer["groups"]))

    async def overview(self, body: Body) -> Answer:
        """Ask for the overview of the model in the window of a body."""
        window = {f"received_{end}": at for end, at in body.get("received_at", {}).items()}
        began = time.perf_counter()
        answer = await self.http.get(
            f"{self._inferences.rpartition('/')[0]}/overview", params=window
        )
        seconds = time.perf_counter() - began
        answer.raise_for_status()
        return Answer(seconds, answer.json()["sampled"])

    async def look_up(self, inference_id: str) -> Answer:
        """Ask for one inference by its client's id."""
        began = time.perf_counter()
        answer = await self.http.get(f"{self._inferences}/{quote(inference_id, safe='')}")
        answer.raise_for_status()
        return Answer(time.perf_counter() - began, 1)

    async def by_key(self, uid: UUID) -> Answer:
        """Read the unit of all ratios: one row by its primary key, straight from Postgres."""
        row = "SELECT * FROM inference WHERE model = $1 AND uid = $2"
        began = time.perf_counter()
        rows = await self._postgres.fetch(row, self._model, uid)
        return Answer(time.perf_counter() - began, len(rows))

    async def some(self, count: int, random: Random) -> list[tuple[UUID, str]]:
        """Return uids and ids of inferences from all over."""
        ends = "SELECT min(lo), max(hi) FROM partition_span WHERE analysed_rows > 0"
        lo, hi = await self._postgres.fetchrow(ends)
        near = (
            "SELECT uid, inference_id FROM inference WHERE model = $1 AND uid >= $2"
            " ORDER BY uid LIMIT 1"
        )
        inferences: list[tuple[UUID, str]] = []
        while len(inferences) < count:
            at = lo + (hi - lo) * random.random()
            drawn = UUID(int=int(at.timestamp() * 1000) << 80)
            inferences += [
                (UUID(int=row[0].int), row[1])
                for row in await self._postgres.fetch(near, self._model, drawn)
            ]
        return inferences

    async def _post(self, what: str, body: Body) -> tuple[float, Any]:
        """Return the seconds, and the answer; None where its time was over."""
        began = time.perf_counter()
        answer = await self.http.post(f"{self._inferences}/{what}", json=body)
        seconds = time.perf_counter() - began
        if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and "timeout" in answer.text:
            return seconds, None
        if answer.is_error:
            sys.exit(f"{what} {body}: {answer.status_code} {answer.text}")
        return seconds, answer.json()


@asynccontextmanager
async def asking(dsn: str, s3: S3 | None = None) -> AsyncIterator[Asker]:
    """A real api on that database, and a client of it.

    The api wants a bucket, for its ledger: `bench` of `s3`, or of a MinIO of its own.
    """
    with ExitStack() as stack:
        if s3 is None:
            s3 = await asyncio.to_thread(stack.enter_context, MinioServer())
            s3.create_bucket(BUCKET)
        api = await asyncio.to_thread(start_api, stack, dsn, s3)
        postgres = await asyncpg.connect(dsn)
        model = await postgres.fetchval(
            "SELECT model FROM registration WHERE model_id = $1", MODELS[0]
        )
        try:
            async with httpx.AsyncClient(base_url=api.address, timeout=60) as http:
                yield Asker(http, postgres, model)
        finally:
            await postgres.close()
