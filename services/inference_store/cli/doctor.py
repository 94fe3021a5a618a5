"""`inference-store doctor`: what is wrong with what the services need, and what to do."""

import argparse
import asyncio
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict

from pydantic import ValidationError

from inference_store.access.roles import read_roles
from inference_store.index.database import engine_of
from inference_store.operations import doctor
from inference_store.operations.doctor import DoctorSettings, Report, Result, State, Subject
from inference_store.platform.logs import secrets_of, struck_out
from inference_store.platform.settings import WrongSetting, refuse_unknown, sentences

from .seconds import seconds

# 1: it works and will bite; 2: it does not work
_CODES = {State.OK: 0, State.WARNING: 1, State.FAILED: 2}
_MARKS = {State.OK: "ok     ", State.WARNING: "WARNING", State.FAILED: "FAILED "}

SETTINGS = DoctorSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How it is told, and how long a check may take."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument(
        "--deadline",
        type=seconds,
        default=15.0,
        metavar="SECONDS",
        help="of one check (default: 15)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Look, tell, and answer 0 (all well), 1 (warnings) or 2 (something does not work)."""
    # What libraries log of servers that are away is what the checks say better.
    logging.basicConfig(level=logging.CRITICAL, force=True)
    unknown = _names()
    try:
        settings = _settings()
    except WrongSetting as wrong:
        report, secrets = Report([*unknown, _unreadable(wrong)]), frozenset[str]()
    else:
        found = asyncio.run(_examined(settings, arguments.deadline))
        report, secrets = Report([*unknown, *found.results]), secrets_of(settings)
    # What servers and libraries say is not ours to trust.
    print(struck_out(as_json(report) if arguments.json else as_text(report), secrets))
    return _CODES[report.state]


def _names() -> list[Result]:
    try:
        refuse_unknown()
    except WrongSetting as wrong:
        remedy = "Spell it as docs/operate.md does, or remove it: no service starts with it."
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


def _unreadable(wrong: WrongSetting) -> Result:
    remedy = "Mend it first: without settings nothing else can be looked at."
    return Result("settings", [doctor.failed(each, remedy) for each in str(wrong).splitlines()])


async def _examined(settings: DoctorSettings, deadline: float) -> Report:
    # Two tries more, and all of it within a check's deadline.
    seconds = min(settings.s3_timeout_seconds, deadline / 4)
    settings = settings.model_copy(update={"s3_timeout_seconds": seconds})
    engine = engine_of(settings, application="inference-store-doctor")
    try:
        subject = Subject(settings, engine)
        return await doctor.examine(doctor.CHECKS, subject, deadline_seconds=deadline)
    finally:
        await engine.dispose()


def as_text(report: Report) -> str:
    """A line a finding, and beneath it what to do."""
    return "\n".join([*_lines(report.results), "", f"All in all: {report.state.value}."])


def _lines(results: Iterable[Result]) -> Iterable[str]:
    for result in results:
        for finding in result.findings:
            yield f"{_MARKS[finding.state]} {result.name}: {finding.seen}"
            if finding.remedy:
                yield f"        → {finding.remedy}"


def as_json(report: Report) -> str:
    """`{"state", "checks": [{"name", "state", "findings": [{"state", "seen", "remedy"}]}]}`"""
    checks = [
        {"name": one.name, "state": one.state, "findings": [asdict(each) for each in one.findings]}
        for one in report.results
    ]
    return json.dumps({"state": report.state, "checks": checks}, indent=2, ensure_ascii=False)
