"""`inference-store reconcile`: compares the bucket with the index, and repairs it on request."""

import argparse
import asyncio
import getpass
import sys
import time
from dataclasses import asdict
from typing import Any
from uuid import UUID

import orjson
from sqlalchemy import func
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.access import Action, Who
from inference_store.erasure import erasures
from inference_store.erasure.erasures import ENDED, Erasure
from inference_store.erasure.erasures import FINAL as FINAL_ERASURE
from inference_store.erasure.leader_election import RECONCILING, open_election
from inference_store.erasure.ledger import Ledger
from inference_store.index.audit import note
from inference_store.index.database import engine_of
from inference_store.index.schema import require_schema
from inference_store.inference.errors import BlobsAway, StoreError
from inference_store.inference.plural import counted
from inference_store.ingester.rebuild import Rebuild
from inference_store.objects import Blobs
from inference_store.operations.reconcile import orphans, reconciliations
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.reconciliations import FINAL, REPAIRS, Reconciliation
from inference_store.platform.settings import IngesterSettings, ReconcileSettings

from .start import start_service

_TOLD_SECONDS = 5.0
_ASKED_SECONDS = 0.5
_SHOWN = 20


class _Settings(IngesterSettings, ReconcileSettings):
    """The settings for comparing, and for indexing again."""


SETTINGS = _Settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the model, and what to do with the findings."""
    parser.add_argument("--model", help="one model alone")
    parser.add_argument(
        "--repair",
        choices=[*(each for each in REPAIRS if each != "none"), "erase"],
        default="none",
        help="rebuild: index again from the bucket alone, then compare; erase: the orphans of a"
        " --report, or, without one, compare and tell what would be erased",
    )
    parser.add_argument("--report", type=UUID, help="with --repair erase: whose orphans go")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Compare and report; return 0 (all well), 1 (something was found) or 2 (it failed)."""
    if arguments.report is not None and (arguments.repair != "erase" or arguments.model):
        print("--report goes with --repair erase, and without --model.", file=sys.stderr)
        return 2
    settings = start_service(_Settings, "reconcile")
    try:
        return asyncio.run(_Command(settings, arguments).run())
    except BlobsAway as away:
        print(f"The object store is away; the same command goes on: {away}", file=sys.stderr)
    except StoreError as wrong:
        print(wrong.detail, file=sys.stderr)
    except (DBAPIError, OSError) as away:
        print(f"Postgres is away; the same command goes on: {away}", file=sys.stderr)
    return 2


class _Command:
    """One call of the command."""

    def __init__(self, settings: _Settings, arguments: argparse.Namespace) -> None:
        self._settings = settings
        self._model: str | None = arguments.model
        self._erases = arguments.repair == "erase"
        self._report: UUID | None = arguments.report
        self._repair: reconciliations.Repair = "none" if self._erases else arguments.repair
        self._json: bool = arguments.json
        self._told = 0.0

    async def run(self) -> int:
        engine = engine_of(self._settings, application="inference-store-reconcile")
        with Blobs(self._settings, threads=self._settings.ingester_fetch_threads) as blobs:
            try:
                async with engine.connect() as connection:
                    await require_schema(connection)
                if self._report is not None:
                    erasure = await self._erase(engine, blobs, self._report)
                    print(
                        _format_erasure_json(erasure)
                        if self._json
                        else _format_erasure_text(erasure)
                    )
                    return 0 if erasure.state in ENDED else 2
                async with open_election(engine, RECONCILING) as lock:
                    while not await lock.take():
                        self._tell("another process reconciles; waiting for it")
                        await asyncio.sleep(1)
                    ended = await self._work(engine, blobs)
                async with engine.connect() as connection:
                    found = await reconciliations.list_findings(connection, ended.id, limit=_SHOWN)
                    told = await self._estimate(connection, ended)
            finally:
                await engine.dispose()
        print(format_json(ended, found, told) if self._json else format_text(ended, found, told))
        return 2 if ended.state == "failed" else int(_is_amiss(ended))

    async def _estimate(
        self, connection: AsyncConnection, ended: Reconciliation
    ) -> orphans.OrphanEstimate | None:
        """Return what `--repair erase` would erase."""
        if not self._erases or ended.state == "failed":
            return None
        return await orphans.estimate_orphans(connection, ended.id)

    async def _erase(self, engine: AsyncEngine, blobs: Blobs, report: UUID) -> Erasure:
        """Request the erasure, unless it was requested, and follow it: the retention service
        carries it out."""
        async with engine.connect() as connection:
            one = await orphans.find_erasure(connection, report)
        if one is None:
            who = Who(f"cli:{_find_user()}", None)
            ledger = Ledger(engine, blobs, prefix=self._settings.ledger_prefix)
            one = await orphans.request(ledger, report, who)
        while one.state not in FINAL_ERASURE:
            self._tell(f"{one.state}: {one.objects} erased; the retention service works on it")
            await asyncio.sleep(_ASKED_SECONDS)
            async with engine.connect() as connection:
                one = await erasures.find(connection, one.id) or one
        return one

    async def _work(self, engine: Any, blobs: Blobs) -> Reconciliation:
        if self._repair != "none":
            # The decisions about deletion since the backup come first, or they would be undone.
            await Ledger(engine, blobs, prefix=self._settings.ledger_prefix).look()
        one = await self._find_begun(engine)
        worker = Reconciler(self._settings, engine, blobs, kafka=self._settings)
        if one.repair == "rebuild" and one.state in {"pending", "repairing"}:
            one = await self._rebuild(engine, blobs, worker, one)
        while one.state not in FINAL:
            one = await worker.step(one)
            self._progress(one)
        return one

    async def _rebuild(
        self, engine: Any, blobs: Blobs, worker: Reconciler, one: Reconciliation
    ) -> Reconciliation:
        """Index from the bucket, from where it stopped; afterwards the two are compared."""
        places = worker.places(one)
        named = [str(place) for place in places]
        if one.places != named:
            async with engine.begin() as connection:
                one = await reconciliations.update(
                    connection, one.id, places=named, place=0, after="", started_at=func.now()
                )
        one = await Rebuild(self._settings, engine, blobs).run(one, places, self._progress)
        return await worker.begin(one, places)

    def _progress(self, one: Reconciliation) -> None:
        self._tell(
            f"{one.state}: place {one.place + 1} of {len(one.places)}, {_format_counts(one)}"
        )

    async def _find_begun(self, engine: Any) -> Reconciliation:
        """Return a reconciliation that was begun and has not ended; else a new one."""
        async with engine.begin() as connection:
            found = await reconciliations.find_unfinished(
                connection, repairs=(self._repair,), cause="command", model_id=self._model
            )
            if found is not None:
                return found
            made = await reconciliations.request(
                connection, model_id=self._model, cause="command", repair=self._repair
            )
            asked: dict[str, Any] = {"asked_model_id": self._model, "repair": self._repair}
            action = Action.RECONCILIATION_REQUESTED
            who = Who(f"cli:{_find_user()}", None)
            await note(connection, who, action, reconciliation=str(made.id), **asked)
            return made

    def _tell(self, said: str) -> None:
        if time.monotonic() - self._told >= _TOLD_SECONDS:
            self._told = time.monotonic()
            print(said, file=sys.stderr, flush=True)


def _format_erasure_text(one: Erasure) -> str:
    """Format an erasure of orphans for people."""
    lines = [f"Erasure {one.id}: {one.state}."]
    lines.append(f"{counted(one.objects, 'object')} erased, {one.bytes} bytes; {one.held} held.")
    if one.certificate:
        lines.append(f"Certificate {one.certificate}.")
    if one.error:
        lines.append(f"LEFT: {one.error}")
    return "\n".join(lines)


def _format_erasure_json(one: Erasure) -> str:
    """Format an erasure of orphans for programs."""
    return orjson.dumps(asdict(one), default=str, option=orjson.OPT_INDENT_2).decode()


def format_text(
    one: Reconciliation,
    found: list[reconciliations.Finding],
    told: orphans.OrphanEstimate | None = None,
) -> str:
    """Format the report for people."""
    lines = [
        f"{one.state}: {_format_counts(one)}",
        f"Judged are objects before {one.orphans_before or 'nothing'}: {one.because}.",
    ]
    if one.books:
        lines.append("Books: " + ", ".join(f"{name} {n}" for name, n in one.books.items()))
    lines += [f"{each.kind:<10} {each.state:<8} {each.storage_key}" for each in found]
    if len(found) == _SHOWN:
        lines.append(f"… all of them: GET /v1/reconciliations/{one.id}/findings")
    if told is not None:
        lines.append(
            f"Nothing was erased. {counted(told.objects, 'object')} ({told.bytes} bytes) would be;"
            f" {told.held} more held."
        )
        lines.append(f"Erase them: inference-store reconcile --repair erase --report {one.id}")
    if one.error:
        lines.append(f"FAILED: {one.error}")
    return "\n".join(lines)


def format_json(
    one: Reconciliation,
    found: list[reconciliations.Finding],
    told: orphans.OrphanEstimate | None = None,
) -> str:
    """Format the report for programs; with the first findings alone."""
    report = {name: getattr(one, name) for name in Reconciliation.__slots__ if name != "noted"}
    report |= {"findings": found} | ({} if told is None else {"would_erase": told})
    return orjson.dumps(report, default=str, option=orjson.OPT_INDENT_2).decode()


def _format_counts(one: Reconciliation) -> str:
    return ", ".join(f"{name} {count}" for name, count in one.counts.items()) or "nothing yet"


def _is_amiss(one: Reconciliation) -> bool:
    found = any(one.count(name) for name in ("missing", "orphans", "unreadable"))
    return found or bool((one.books or {}).get("difference"))


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        return "unknown"
