"""`inference-store doctor` and `reconcile`: what is wrong with a store, and how to repair it."""

import argparse
import asyncio
import json
import logging
import ssl
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
from pydantic import ValidationError
from sqlalchemy import func
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.access import Action, Who
from inference_store.access.rights import read_roles
from inference_store.erasure.ledger import Ledger
from inference_store.erasure.locks import RECONCILING, open_election
from inference_store.erasure.progress import ENDED, Erasure, find_erasure
from inference_store.erasure.progress import FINAL as FINAL_ERASURE
from inference_store.index.audit import note
from inference_store.index.database import create_engine
from inference_store.index.schema import migrated
from inference_store.inference.nearest import counted
from inference_store.ingester.rebuild import Rebuild
from inference_store.objects import Blobs
from inference_store.operations import doctor
from inference_store.operations.doctor import DoctorSettings, Result, State, Subject, send
from inference_store.operations.reconcile import orphans, stored_reports
from inference_store.operations.reconcile.reconciler import Reconciler
from inference_store.operations.reconcile.stored_reports import FINAL, REPAIRS, Reconciliation
from inference_store.platform.logs import secrets_of, strike_out
from inference_store.platform.settings import (
    IngesterSettings,
    ReconcileSettings,
    WrongSetting,
    list_unknown,
    sentences,
)

from .command import Command, exiting, find_cli_user, parse_positive_seconds, start_service

# 1: it works and will cause trouble; 2: it does not work
_CODES = {State.OK: 0, State.WARNING: 1, State.FAILED: 2}
_MARKS = {State.OK: "ok     ", State.WARNING: "WARNING", State.FAILED: "FAILED "}


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the output format, how long a check may take, and what is sent."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--deadline",
        type=parse_positive_seconds,
        default=15.0,
        metavar="SECONDS",
        help="for each check (default: 15); --send waits four times as long for an ingester",
    )
    parser.add_argument(
        "--send", action="store_true", help="also send an event, or a call (--proxy), the whole way"
    )
    parser.add_argument(
        "--api", help="its address (default: INFERENCE_STORE_URL, else its settings)"
    )
    parser.add_argument("--proxy", help="address to send a call through, with or without a path")
    parser.add_argument("--proxy-request", type=_parse_json, help="JSON that the model answers")
    parser.add_argument("--proxy-model", default=send.MODEL, help="(default: %(default)s)")
    parser.add_argument(
        "--ca", action="append", help="file of trusted certificates; may be repeated"
    )


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is not JSON: {error}") from None


def run_doctor(arguments: argparse.Namespace) -> int:
    """Run the checks and print the report; return 0 (all well), 1 (warnings) or 2 (something
    fails)."""
    # The checks report unavailable servers better than the logs of libraries.
    logging.basicConfig(level=logging.CRITICAL, force=True)
    names = "\n".join(list_unknown())
    remedy = "Spell it as docs/reference/settings.md does, or remove it: no service starts."
    unknown = [Result("names of settings", [doctor.failed(names, remedy)])] if names else []
    try:
        settings = _read_settings()
    except WrongSetting as wrong:
        remedy = "Fix it first: nothing else can be checked without settings."
        unreadable = [doctor.failed(line, remedy) for line in str(wrong).splitlines()]
        results = [*unknown, Result("settings", unreadable)]
        secrets = frozenset[str]()
    else:
        examined = asyncio.run(_examine(settings, arguments.deadline))
        sent = [_send(settings, arguments)] if arguments.send else []
        results, secrets = [*unknown, *examined, *sent], secrets_of(settings)
    # Texts of servers and libraries are not trusted.
    print(
        strike_out(
            format_doctor_json(results) if arguments.json else format_doctor_text(results), secrets
        )
    )
    return _CODES[doctor.find_worst(results)]


def _read_settings() -> DoctorSettings:
    """Return the settings. Raise WrongSetting, with a line for each that is wrong."""
    try:
        settings = DoctorSettings()
    except ValidationError as wrong:
        raise WrongSetting("\n".join(sentences(wrong))) from None
    read_roles(settings)
    return settings


async def _examine(settings: DoctorSettings, deadline: float) -> Sequence[Result]:
    # There are two retries, and all of them are within a check's deadline.
    seconds = min(settings.s3_timeout_seconds, deadline / 4)
    settings = settings.model_copy(update={"s3_timeout_seconds": seconds})
    engine = create_engine(settings, application="inference-store-doctor")
    try:
        subject = Subject(settings, engine)
        return await doctor.examine(doctor.CHECKS, subject, deadline_seconds=deadline)
    finally:
        await engine.dispose()


def _send(settings: DoctorSettings, arguments: argparse.Namespace) -> Result:
    try:
        texts = [Path(file).read_text() for file in arguments.ca or ()]
        tls = ssl.create_default_context(cadata="\n".join(texts)) if texts else None
    except (OSError, ValueError) as error:
        return Result("send", [doctor.failed(f"--ca: {error}", "Name files of certificates.")])
    api, seconds = send.find_api(settings, arguments.api, tls), 4 * arguments.deadline
    steps = send.send_event(settings, api, seconds=seconds)
    if arguments.proxy:
        call = (arguments.proxy, arguments.proxy_request, arguments.proxy_model)
        steps = send.send_call(*call, api, seconds=seconds)
    return Result("send", send.run_steps(steps))


def format_doctor_text(results: Sequence[Result]) -> str:
    """Format the report as text: a line for each finding, and below it what to do."""
    lines: list[str] = []
    for result in results:
        for finding in result.findings:
            lines.append(f"{_MARKS[finding.state]} {result.name}: {finding.seen}")
            lines += [f"        → {finding.remedy}"] if finding.remedy else []
    return "\n".join([*lines, "", f"Result: {doctor.find_worst(results).value}."])


def format_doctor_json(results: Sequence[Result]) -> str:
    """Format the report as JSON: `{"state", "checks": [{"name", "state", "findings": [{"state",
    "seen", "remedy"}]}]}`"""
    checks = [
        {
            "name": result.name,
            "state": result.state,
            "findings": [asdict(finding) for finding in result.findings],
        }
        for result in results
    ]
    document = {"state": doctor.find_worst(results), "checks": checks}
    return json.dumps(document, indent=2, ensure_ascii=False)


_PROGRESS_SECONDS = 5.0
_POLL_SECONDS = 0.5
_FETCH_THREADS = 16
_SHOWN = 20


class _Settings(IngesterSettings, ReconcileSettings):
    """The settings for comparing, and for indexing again."""


def add_reconcile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the model, and what to do with the findings."""
    parser.add_argument("--model", help="only this model")
    parser.add_argument(
        "--repair",
        choices=[*(repair for repair in REPAIRS if repair != "none"), "erase"],
        default="none",
        help="rebuild: index again from the bucket alone, then compare; erase: the orphans of a"
        " --report, or, without one, compare and tell what would be erased",
    )
    parser.add_argument("--report", type=UUID, help="with --repair erase: whose orphans to erase")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object")


def run_reconcile(arguments: argparse.Namespace) -> int:
    """Compare and report; return 0 (all well), 1 (something was found), 2 (it failed). Exits with 3
    if Postgres or the object store is unavailable."""
    if arguments.report is not None and (arguments.repair != "erase" or arguments.model):
        print("--report needs --repair erase, and cannot have --model.", file=sys.stderr)
        return 2
    settings = start_service(_Settings, "reconcile")
    with exiting(refused=2):
        return asyncio.run(_Command(settings, arguments).run())


class _Command:
    """One run of the command."""

    def __init__(self, settings: _Settings, arguments: argparse.Namespace) -> None:
        self._settings = settings
        self._model: str | None = arguments.model
        self._erases = arguments.repair == "erase"
        self._report: UUID | None = arguments.report
        self._repair: stored_reports.Repair = "none" if self._erases else arguments.repair
        self._json: bool = arguments.json
        self._reported_at = 0.0

    async def run(self) -> int:
        pool_size = self._settings.postgres_pool_size
        async with migrated(self._settings, "reconcile", pool_size=pool_size) as engine:
            with Blobs(self._settings, threads=_FETCH_THREADS) as blobs:
                if self._report is not None:
                    erasure = await self._erase(engine, blobs, self._report)
                    print(_dump(dict(erasure)) if self._json else _format_erasure(erasure))
                    return 0 if erasure.state in ENDED else 2
                async with open_election(engine, RECONCILING) as lock:
                    while not await lock.take():
                        self._report_progress("another process is reconciling; waiting for it")
                        await asyncio.sleep(1)
                    ended = await self._work(engine, blobs)
            async with engine.connect() as connection:
                findings = await stored_reports.list_findings(connection, ended.id, limit=_SHOWN)
                estimate = None
                if self._erases and ended.state != "failed":
                    estimate = await orphans.estimate_orphans(connection, ended.id)
        print((format_json if self._json else format_text)(ended, findings, estimate))
        has_findings = any(ended.count(name) for name in ("missing", "orphans", "unreadable"))
        has_problems = has_findings or bool((ended.books or {}).get("difference"))
        return 2 if ended.state == "failed" else int(has_problems)

    async def _erase(self, engine: AsyncEngine, blobs: Blobs, report: UUID) -> Erasure:
        """Request the erasure, unless it was requested, and follow it: the retention service
        carries it out."""
        async with engine.connect() as connection:
            erasure = await orphans.find_erasure_of_report(connection, report)
        if erasure is None:
            who = Who(f"cli:{find_cli_user()}", None)
            ledger = Ledger(engine, blobs, prefix=self._settings.ledger_prefix)
            erasure = await orphans.request_erasure(ledger, report, who)
        while erasure.state not in FINAL_ERASURE:
            self._report_progress(
                f"{erasure.state}: {erasure.objects} erased; the retention service works on it"
            )
            await asyncio.sleep(_POLL_SECONDS)
            async with engine.connect() as connection:
                erasure = await find_erasure(connection, erasure.id) or erasure
        return erasure

    async def _work(self, engine: Any, blobs: Blobs) -> Reconciliation:
        if self._repair != "none":
            # Replay the decisions about deletion since the backup first, or they would be undone.
            await Ledger(engine, blobs, prefix=self._settings.ledger_prefix).compare()
        reconciliation = await self._find_or_request(engine)
        worker = Reconciler(self._settings, engine, blobs, kafka=self._settings)
        if reconciliation.repair == "rebuild" and reconciliation.state in {"pending", "repairing"}:
            reconciliation = await self._rebuild(engine, blobs, worker, reconciliation)
        while reconciliation.state not in FINAL:
            reconciliation = await worker.step(reconciliation)
            self._report_state(reconciliation)
        return reconciliation

    async def _rebuild(
        self, engine: Any, blobs: Blobs, worker: Reconciler, reconciliation: Reconciliation
    ) -> Reconciliation:
        """Index from the bucket, continuing where it stopped; then begin the comparison."""
        prefixes = worker.list_prefixes(reconciliation)
        names = [str(prefix) for prefix in prefixes]
        if reconciliation.places != names:
            async with engine.begin() as connection:
                reconciliation = await stored_reports.update_reconciliation(
                    connection,
                    reconciliation.id,
                    places=names,
                    place=0,
                    after="",
                    started_at=func.now(),
                )
        reconciliation = await Rebuild(self._settings, engine, blobs).run(
            reconciliation, prefixes, self._report_state
        )
        return await worker.begin(reconciliation, prefixes)

    def _report_state(self, reconciliation: Reconciliation) -> None:
        place, places = reconciliation.place + 1, len(reconciliation.places)
        counts = _format_counts(reconciliation.counts) or "nothing yet"
        self._report_progress(f"{reconciliation.state}: place {place} of {places}, {counts}")

    async def _find_or_request(self, engine: Any) -> Reconciliation:
        """Return a reconciliation that has begun and not ended; else request a new one."""
        async with engine.begin() as connection:
            unfinished = await stored_reports.find_unfinished(
                connection, repairs=(self._repair,), cause="command", model_id=self._model
            )
            if unfinished is not None:
                return unfinished
            requested = await stored_reports.request_reconciliation(
                connection, model_id=self._model, cause="command", repair=self._repair
            )
            detail: dict[str, Any] = {"asked_model_id": self._model, "repair": self._repair}
            action = Action.RECONCILIATION_REQUESTED
            who = Who(f"cli:{find_cli_user()}", None)
            await note(connection, who, action, reconciliation=str(requested.id), **detail)
            return requested

    def _report_progress(self, sentence: str) -> None:
        if time.monotonic() - self._reported_at >= _PROGRESS_SECONDS:
            self._reported_at = time.monotonic()
            print(sentence, file=sys.stderr, flush=True)


def _format_erasure(erasure: Erasure) -> str:
    counts = f"{counted(erasure.objects, 'object')} erased, {erasure.bytes} bytes"
    lines = [f"Erasure {erasure.id}: {erasure.state}.", f"{counts}; {erasure.held} held."]
    lines += [f"Certificate {erasure.certificate}."] if erasure.certificate else []
    return "\n".join([*lines, *([f"LEFT: {erasure.error}"] if erasure.error else [])])


def _dump(document: Any) -> str:
    return orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2).decode()


def format_text(
    reconciliation: Reconciliation,
    findings: list[stored_reports.Finding],
    estimate: orphans.OrphanEstimate | None = None,
) -> str:
    """Format the report for people."""
    lines = [
        f"{reconciliation.state}: {_format_counts(reconciliation.counts) or 'nothing yet'}",
        f"Judged are objects before {reconciliation.orphans_before or 'nothing'}:"
        f" {reconciliation.because}.",
    ]
    if reconciliation.books:
        lines.append(f"Books: {_format_counts(reconciliation.books)}")
    lines += [
        f"{finding.kind:<10} {finding.state:<8} {finding.storage_key}" for finding in findings
    ]
    if len(findings) == _SHOWN:
        lines.append(f"… all of them: GET /v1/reconciliations/{reconciliation.id}/findings")
    if estimate is not None:
        lines.append(
            f"Nothing was erased. {counted(estimate.objects, 'object')} ({estimate.bytes} bytes)"
            f" would be; {estimate.held} more held."
        )
        lines.append(
            f"Erase them: inference-store reconcile --repair erase --report {reconciliation.id}"
        )
    if reconciliation.error:
        lines.append(f"FAILED: {reconciliation.error}")
    return "\n".join(lines)


def format_json(
    reconciliation: Reconciliation,
    findings: list[stored_reports.Finding],
    estimate: orphans.OrphanEstimate | None = None,
) -> str:
    """Format the report for programs, with only the first findings."""
    more = {} if estimate is None else {"would_erase": estimate.model_dump()}
    shown = [finding._asdict() for finding in findings]
    return _dump({**reconciliation.model_dump(), "findings": shown, **more})


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


DOCTOR = Command(run_doctor, DoctorSettings, add_doctor_arguments)
RECONCILE = Command(run_reconcile, _Settings, add_reconcile_arguments)
