"""`inference-store doctor`: checks what the services need, and says what to do."""

import argparse
import asyncio
import json
import logging
import ssl
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from inference_store.access.rights import read_roles
from inference_store.index.database import engine_of
from inference_store.operations import doctor
from inference_store.operations.doctor import DoctorSettings, Report, Result, State, Subject, send
from inference_store.platform.logs import secrets_of, strike_out
from inference_store.platform.settings import WrongSetting, refuse_unknown, sentences

from .entered import parse_positive_seconds

# 1: it works and will cause trouble; 2: it does not work
_CODES = {State.OK: 0, State.WARNING: 1, State.FAILED: 2}
_MARKS = {State.OK: "ok     ", State.WARNING: "WARNING", State.FAILED: "FAILED "}

SETTINGS = DoctorSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the output format, how long a check may take, and what is sent."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--deadline",
        type=parse_positive_seconds,
        default=15.0,
        metavar="SECONDS",
        help="of one check (default: 15); --send waits four times as long for an ingester",
    )
    parser.add_argument(
        "--send", action="store_true", help="also send an event, or a call (--proxy), the whole way"
    )
    parser.add_argument("--api", help="where (default: INFERENCE_STORE_URL, else of its settings)")
    parser.add_argument("--proxy", help="through which a call is sent, with a path or without one")
    parser.add_argument("--proxy-request", type=_parse_json, help="JSON, to be answered well")
    parser.add_argument("--proxy-model", default=send.MODEL, help="(default: %(default)s)")
    parser.add_argument("--ca", action="append", help="file to check certificates by; may repeat")


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is no JSON: {error}") from None


def run(arguments: argparse.Namespace) -> int:
    """Run the checks and print the report; return 0 (all well), 1 (warnings) or 2 (something
    fails)."""
    # The checks report unavailable servers better than the logs of libraries.
    logging.basicConfig(level=logging.CRITICAL, force=True)
    unknown = _list_names()
    try:
        settings = _settings()
    except WrongSetting as wrong:
        report, secrets = Report([*unknown, _make_unreadable(wrong)]), frozenset[str]()
    else:
        examined = asyncio.run(_examine(settings, arguments.deadline))
        sent = [_send(settings, arguments)] if arguments.send else []
        report, secrets = Report([*unknown, *examined.results, *sent]), secrets_of(settings)
    # Texts of servers and libraries are not trusted.
    print(strike_out(format_json(report) if arguments.json else format_text(report), secrets))
    return _CODES[report.state]


def _list_names() -> list[Result]:
    try:
        refuse_unknown()
    except WrongSetting as wrong:
        remedy = "Spell it as docs/reference/settings.md does, or remove it: no service starts."
        return [Result("names of settings", [doctor.failed(str(wrong), remedy)])]
    return []


def _settings() -> DoctorSettings:
    """Return the settings. Raise WrongSetting, with a line for each that is wrong."""
    try:
        settings = DoctorSettings()
    except ValidationError as wrong:
        raise WrongSetting("\n".join(sentences(wrong))) from None
    read_roles(settings)
    return settings


def _make_unreadable(wrong: WrongSetting) -> Result:
    remedy = "Fix it first: without settings nothing else can be looked at."
    return Result("settings", [doctor.failed(line, remedy) for line in str(wrong).splitlines()])


async def _examine(settings: DoctorSettings, deadline: float) -> Report:
    # There are two retries, and all of them are within a check's deadline.
    seconds = min(settings.s3_timeout_seconds, deadline / 4)
    settings = settings.model_copy(update={"s3_timeout_seconds": seconds})
    engine = engine_of(settings, application="inference-store-doctor")
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


def format_text(report: Report) -> str:
    """Format the report as text: a line for each finding, and below it what to do."""
    return "\n".join([*_format_lines(report.results), "", f"All in all: {report.state.value}."])


def _format_lines(results: Iterable[Result]) -> Iterable[str]:
    for result in results:
        for finding in result.findings:
            yield f"{_MARKS[finding.state]} {result.name}: {finding.seen}"
            if finding.remedy:
                yield f"        → {finding.remedy}"


def format_json(report: Report) -> str:
    """Format the report as JSON: `{"state", "checks": [{"name", "state", "findings": [{"state",
    "seen", "remedy"}]}]}`"""
    checks = [
        {
            "name": result.name,
            "state": result.state,
            "findings": [asdict(finding) for finding in result.findings],
        }
        for result in report.results
    ]
    return json.dumps({"state": report.state, "checks": checks}, indent=2, ensure_ascii=False)
