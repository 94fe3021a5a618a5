"""`--help` of a command lists its settings, from the one list of them."""

import re
from collections.abc import Iterator
from importlib import import_module

import pytest

from inference_store.cli.main import COMMANDS
from inference_store.cli.settings_help import list_settings
from inference_store.inference.field_docs import field_docs
from inference_store.platform.settings import GROUPS, PREFIX, ProxySettings, SettingsGroup


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("group", GROUPS)
def test_lists_every_setting_with_its_sentence(group: type[SettingsGroup]) -> None:
    text = list_settings(group)
    names = re.findall(rf"^  {PREFIX}([A-Z0-9_]+)", text, re.MULTILINE)
    assert sorted(names) == sorted(name.upper() for name in group.model_fields)
    words = " ".join(text.split())
    assert all(doc in words for doc in field_docs(group).values())


@pytest.mark.parametrize(
    "line",
    [
        "PROXY_PORT (default: 8090)",
        "PROXY_UPSTREAM",
        "PROXY_GRACE_SECONDS (default: 20)",
        "S3_SECRET_KEY",
        "LOG_LEVEL (default: info)",
    ],
)
def test_lists_defaults(line: str) -> None:
    assert f"  {PREFIX}{line}\n" in list_settings(ProxySettings)


def test_the_commands_own_come_first() -> None:
    assert list_settings(ProxySettings).index("PROXY_PORT") < list_settings(ProxySettings).index(
        "LOG_LEVEL"
    )


def list_commands_with_settings() -> Iterator[str]:
    """The commands that read settings."""
    for name in COMMANDS:
        module = import_module(f"inference_store.cli.{name}")
        if hasattr(module, "start_service") or name == "doctor":
            yield name


def test_every_command_that_reads_settings_lists_them() -> None:
    commands = list(list_commands_with_settings())
    assert {"proxy", "ingester", "api", "retention", "migrate"} <= set(commands)
    for name in commands:
        assert issubclass(import_module(f"inference_store.cli.{name}").SETTINGS, SettingsGroup), (
            name
        )
