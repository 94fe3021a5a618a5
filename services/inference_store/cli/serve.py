"""`inference-store api`, `ingester`, `proxy` and `retention`: the services, each until stopped."""

import argparse
import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop
from pydantic import ValidationError

from inference_store.platform.settings import (
    ApiSettings,
    BlobSettings,
    CertificateSettings,
    Checks,
    IngesterSettings,
    KafkaSettings,
    LogSettings,
    ProxySettings,
    RetentionSettings,
    RoleSettings,
    UpstreamSettings,
)

from .command import Command, start_service
from .main import importing

# ruff: noqa: PLC0415  (a command needs only its own service installed)

S = TypeVar("S", bound=LogSettings)


def list_checks(service: str) -> Checks:
    """Return the checks of a service's settings."""
    if service == "proxy":
        from inference_store.proxy.run import read_configuration

        return {UpstreamSettings: read_configuration}
    from inference_store.objects.clients import web_identity

    checks: dict[Any, Any] = {BlobSettings: web_identity}
    if service == "api":
        from inference_store.access.rights import read_roles

        checks[RoleSettings] = read_roles
    if service == "retention":
        from inference_store.erasure.log import signing_keys

        checks[CertificateSettings] = signing_keys
    return checks


def _run(service: str, group: type[S], serve: Callable[[S], Coroutine[Any, Any, None]]) -> int:
    settings = start_service(group, service, list_checks(service))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0


def _run_api(_: argparse.Namespace) -> int:
    with importing():
        from inference_store.api.run import serve
    return _run("api", ApiSettings, serve)


def _run_proxy(_: argparse.Namespace) -> int:
    with importing():
        from inference_store.proxy.run import serve
    return _run("proxy", ProxySettings, serve)


def _run_ingester(_: argparse.Namespace) -> int:
    with importing():
        from inference_store.ingester.run import run
    _collect_seldom()
    return _run("ingester", IngesterSettings, run)


def _run_retention(_: argparse.Namespace) -> int:
    with importing():
        from inference_store.retention.run import run
    _collect_seldom()
    return _run("retention", RetentionSettings, lambda settings: run(settings, kafka=_read_kafka()))


def _collect_seldom() -> None:
    """A batch is thousands of small tuples or objects that live for a second, without reference
    cycles: with Python's thresholds the garbage collector would scan them repeatedly, 36 µs per
    event, and find nothing."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def _read_kafka() -> KafkaSettings | None:
    """Return the settings of Kafka, where events may be unread. Deletion needs no Kafka: the
    service starts without it."""
    try:
        return KafkaSettings()
    except ValidationError:
        return None


API = Command(_run_api, ApiSettings)
PROXY = Command(_run_proxy, ProxySettings)
INGESTER = Command(_run_ingester, IngesterSettings)
RETENTION = Command(_run_retention, RetentionSettings)
