"""Checks run beside each other, and name what is wrong however a server writes its refusals."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import create_async_engine

from inference_store.index.database import create_engine
from inference_store.operations.doctor import (
    CHECKS,
    Check,
    DoctorSettings,
    Finding,
    State,
    Subject,
    examine,
    failed,
    find_worst,
    send,
)
from inference_store.operations.doctor.checks import check_buckets, compare_clocks
from inference_store.operations.doctor.findings import (
    SETTING_CONFLICTS,
    check_settings,
    ok,
    warning,
)
from tests.http_stub import Request, Response, serve_http
from tests.settings import make_settings

NOBODY: Any = None


async def fine(_: Any) -> list[Finding]:
    return [ok("fine")]


async def bad(_: Any) -> list[Finding]:
    return [warning("so so", "do"), failed("bad", "do")]


async def hangs(_: Any) -> list[Finding]:
    await asyncio.Event().wait()
    return []


async def breaks(_: Any) -> list[Finding]:
    raise RuntimeError("a defect")


async def test_checks_have_deadlines_and_skip_what_depends_on_a_failed_one() -> None:
    checks = [Check(str(n), "", hangs) for n in range(5)] + [Check("fine", "", fine)]
    report = await examine(checks, NOBODY, deadline_seconds=0)
    assert [result.state for result in report] == [State.FAILED] * 5 + [State.OK]
    assert "no answer within 0 s" in report[0].findings[0].seen
    checks = [Check("a", "", breaks), Check("b", "", fine), Check("c", "", bad)]
    report = await examine(checks, NOBODY)
    assert [result.state for result in report] == ["failed", "ok", "failed"]
    assert "RuntimeError: a defect" in report[0].findings[0].seen
    assert find_worst(report) is State.FAILED
    checks = [
        Check("a", "", bad), Check("b", "", breaks, ("a",)), Check("c", "", breaks, ("b",)),
        Check("d", "", fine),
    ]  # fmt: skip
    report = await examine(checks, NOBODY)
    assert [result.state for result in report] == ["failed", "warning", "warning", "ok"]
    assert report[2].findings[0].seen == "not looked at, because of the check 'b'"


def test_checks_follow_those_that_they_need_and_judge_a_clock() -> None:
    names: set[str] = set()
    for check in CHECKS:
        assert names.issuperset(check.needs)
        assert check.name not in names
        names.add(check.name)
    cases = ((0, "ok"), (-4.9, "ok"), (5.2, "warning"), (-299, "warning"), (301, "failed"))
    for seconds, state in cases:
        now = datetime(2026, 1, 1, tzinfo=UTC)
        later = now + timedelta(seconds=2)
        finding = compare_clocks("Postgres", now + timedelta(seconds=1 + seconds), now, later)
        assert finding.state == state, seconds
        assert ("ahead of" in finding.seen) == (seconds > 0), seconds


PLANTED: list[dict[str, object]] = [
    {"auth": "off", "api_host": "0.0.0.0"},
    {"postgres_dsn": "postgresql://db.example/x"},
    {"tombstone_seconds": 3600, "ingester_parked_give_up_seconds": 7200},
    {"tombstone_seconds": 60, "ingester_parked_give_up_seconds": 30},
    {"postgres_pool_size": 2},
    {"log_level": "debug"},
]


def make_subject(**changes: object) -> Subject:
    secret = {"api_token": SecretStr("not-in-a-sentence")}
    settings = DoctorSettings.model_validate(secret | changes)
    return Subject(settings, create_async_engine("postgresql+asyncpg://nobody@127.0.0.1:1/x"))


async def test_settings_that_fight_are_reported_and_by_default_none() -> None:
    assert [finding.state for finding in await check_settings(make_subject())] == [State.OK]
    assert len(PLANTED) == len(SETTING_CONFLICTS)
    for number in range(len(PLANTED)):
        findings = await check_settings(make_subject(**PLANTED[number]))
        assert SETTING_CONFLICTS[number].remedy in [finding.remedy for finding in findings], number
        seen = " ".join(finding.seen for finding in findings)
        assert "{" not in seen, number
        assert "not-in-a" not in seen, number


async def test_a_line_to_postgres_that_may_be_in_the_clear() -> None:
    for changes, is_warned in (
        ({"postgres_dsn": "postgresql://db.example/x?sslmode=prefer"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "prefer"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "disable"}, True),
        ({"postgres_dsn": "postgresql://db.example/x", "postgres_tls": "require"}, False),
        ({"postgres_dsn": "postgresql://db.example/x?sslmode=verify-full"}, False),
        ({"postgres_dsn": "postgresql://[::1]/x?sslmode=prefer"}, False),
        ({"postgres_dsn": "postgresql://127.0.0.1/x", "postgres_tls": "disable"}, False),
    ):
        findings = await check_settings(make_subject(**changes))
        assert any("sslmode=" in finding.seen for finding in findings) == is_warned, changes


_NO_BUCKET = b"<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
_LISTED = b"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated></ListBucketResult>"


def check_with(**changes: Any) -> Finding:
    keys = {"s3_access_key": "a", "s3_secret_key": "b" * 16}
    settings = make_settings(DoctorSettings, **(keys | changes))
    subject = Subject(settings, create_engine("postgresql://nobody/none"))
    (finding,) = asyncio.run(check_buckets(subject))
    return finding


def test_names_what_answers_and_a_bucket_as_s3_would() -> None:
    sentence = "inference-store: there is no such bucket (NoSuchBucket: none)"
    for kind in ("application/xml", "text/xml; charset=utf-8", "text/plain", None):
        missing = Response(404, _NO_BUCKET, kind)
        with serve_http(lambda _, missing=missing: missing) as endpoint:  # type: ignore[misc]
            assert check_with(s3_endpoint=endpoint).seen.startswith(sentence), kind
    for body in (b"", b"<html>nginx</html>"):
        page = Response(404, body, "text/html")
        with serve_http(lambda _, page=page: page) as endpoint:  # type: ignore[misc]
            finding = check_with(s3_endpoint=endpoint)
        assert "what answers is not an S3 server" in finding.seen, body
        assert "INFERENCE_STORE_S3_ENDPOINT" in finding.remedy, body
    for name in ("s3://there", "a/b", "Bad_Bucket!", "ab", "10.0.0.1"):
        refused = check_with(s3_endpoint="http://127.0.0.1:1", s3_bucket=name)
        assert refused.state is State.FAILED, name
        sentence = f"{name}: this is not a valid bucket name (InvalidBucketName"
        assert refused.seen.startswith(sentence)
        assert "INFERENCE_STORE_S3_BUCKET" in refused.remedy, name


def check_refusing(*refused: str) -> Finding:
    """Return the finding of an object store that denies queries with one of these words."""

    def answer(request: Request) -> Response:
        if any(word in request.path for word in refused):
            return Response(403, _DENIED)
        if "versioning" in request.path:
            return Response(body=b"<VersioningConfiguration/>")
        if "object-lock" in request.path:
            return Response(body=b"<ObjectLockConfiguration/>")
        return Response(body=_LISTED)

    with serve_http(answer) as endpoint:
        return check_with(s3_endpoint=endpoint)


def test_warns_about_settings_it_may_not_read() -> None:
    versioning, lock = "s3:GetBucketVersioning", "s3:GetBucketObjectLockConfiguration"
    for refused, rights in (
        (["versioning"], versioning),
        (["object-lock"], lock),
        (["versioning", "object-lock"], f"{lock} and {versioning}"),
    ):
        finding = check_refusing(*refused)
        assert (finding.state, finding.remedy) == (State.WARNING, f"Grant {rights}.")
    finding = check_refusing("list-type")
    assert finding.state is State.FAILED, "it may not be listed"
    assert "AccessDenied" in finding.seen


_TOKEN = "sesame, open again"
_GIVEN = {"kafka_bootstrap_servers": "k:9092", "s3_endpoint_url": "http://s3:9000"}


def test_the_api_of_the_settings_is_asked_by_its_name() -> None:
    for settings, address in (
        ({}, "http://127.0.0.1:8080"),
        ({"api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "0.0.0.0", "api_port": 18780}, "http://127.0.0.1:18780"),
        ({"api_host": "::", "api_port": 18780}, "http://[::1]:18780"),
        ({"api_port": 18780, "url": "https://store.example/"}, "https://store.example"),
    ):
        found = send.find_api(DoctorSettings.model_validate(_GIVEN | settings), None, None)
        assert found.address == address, settings
    # Else an api without access control, in a cluster say, refuses it.
    with serve_http(lambda request: Response(body=request.headers["Host"].encode())) as api:
        for token, name in ((None, "localhost"), (_TOKEN, api.removeprefix("http://"))):
            given = DoctorSettings.model_validate({**_GIVEN, "api_token": token})
            there = send.find_api(given, api, None)
            assert there.read("GET", "/") == name.encode(), token
            assert _TOKEN not in repr(there)
