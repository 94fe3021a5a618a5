"""Names that operators and clients write down: settings, metrics, commands, reasons."""

import argparse
from collections.abc import Iterator
from importlib import import_module

from pydantic_core import PydanticUndefined

from inference_store.access.audit import Action
from inference_store.access.rights import ROLES, Right
from inference_store.cli.main import COMMANDS, build_root_parser
from inference_store.erasure.ledger import KINDS
from inference_store.inference import errors
from inference_store.inference.errors import StoreError
from inference_store.inference.events import DEAD_LETTER_REASONS, FIELDS
from inference_store.inference.metadata import TYPE_NAMES
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.inference.task_types import TASK_TYPES
from inference_store.operations.doctor import CHECKS
from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import GROUPS, PREFIX, secrets_of
from inference_store.platform.settings.group import Group
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.query.aggregates import AGGREGATES
from inference_store.query.operators import OPERATORS

from .golden import check


def test_settings() -> None:
    check("settings.txt", lines(line for group in GROUPS for line in settings_of(group)))


def test_metrics() -> None:
    found = (
        f"{one.kind} {one.name}{{{','.join(one.labels)}}} {one.owner}"
        for one in sorted(METRICS, key=lambda one: one.name)
    )
    check("metrics.txt", lines(found))


def test_commands() -> None:
    found = [*options_of("inference-store", build_root_parser())]
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        import_module(f"inference_store.cli.{name}").add_arguments(parser)
        found += options_of(f"inference-store {name}", parser)
    check("commands.txt", lines(found))


def test_lists() -> None:
    refusals = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {
        "aggregate": [each.name for each in AGGREGATES.values()],
        "audit action": [each.value for each in Action],
        "check of the doctor": [each.name for each in CHECKS],
        "dead letter": DEAD_LETTER_REASONS,
        "drop": DROP_REASONS,
        "error": [f"{x.status} {x.type}" for x in refusals if issubclass(x, StoreError)],
        "field of an event": FIELDS,
        "kind of the ledger": [each.name for each in KINDS],
        "metadata type": TYPE_NAMES,
        "operator": OPERATORS,
        "protocol": PROTOCOLS,
        "right": [each.value for each in Right],
        "role": [f"{role}: {' '.join(sorted(ROLES[role]))}" for role in ROLES],
        "task type": TASK_TYPES,
    }
    check(
        "lists.txt", lines(sorted(f"{what}: {n}" for what, names in found.items() for n in names))
    )


def lines(found: Iterator[str] | list[str]) -> str:
    return "".join(f"{line}\n" for line in found)


def settings_of(group: type[Group]) -> Iterator[str]:
    """Yield each setting of a service with its default; `!` stands before a secret."""
    yield f"# {group.__name__.removesuffix('Settings').lower()}"
    for name, field in sorted(group.model_fields.items()):
        secret = "!" if name in secrets_of(group) else ""
        default = "required" if field.default is PydanticUndefined else f"= {field.default!r}"
        yield f"{secret}{PREFIX}{name.upper()} {default}"


def options_of(program: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command and each of its options, then those of the commands below it."""
    yield program
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options_of(f"{program} {name}", below)
        elif not isinstance(action, argparse._HelpAction):
            names = ", ".join(action.option_strings) or action.dest
            choices = "" if action.choices is None else f" {list(action.choices)}"
            yield f"  {names}{choices}{' required' if action.required else ''}"
