"""`--help` of a command lists its settings, from the one list of them."""

import re
from importlib import import_module

import pytest

from inference_store.cli.main import COMMANDS
from inference_store.cli.settings_help import list_settings
from inference_store.inference.field_docs import field_docs
from inference_store.platform.settings import GROUPS, PREFIX, ProxySettings, SettingsGroup


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


def test_lists_every_setting_with_its_sentence() -> None:
    for group in GROUPS:
        text = list_settings(group)
        names = re.findall(rf"^  {PREFIX}([A-Z0-9_]+)", text, re.MULTILINE)
        assert sorted(names) == sorted(name.upper() for name in group.model_fields), group
        words = " ".join(text.split())
        assert all(doc in words for doc in field_docs(group).values()), group


def test_lists_defaults_and_the_commands_own_settings_first() -> None:
    text = list_settings(ProxySettings)
    numbers = ("PROXY_PORT (default: 8090)", "PROXY_GRACE_SECONDS (default: 20)")
    for line in (*numbers, "PROXY_UPSTREAM", "S3_SECRET_KEY", "LOG_LEVEL (default: info)"):
        assert f"  {PREFIX}{line}\n" in text
    assert text.index("PROXY_PORT") < text.index("LOG_LEVEL")


def test_every_command_that_reads_settings_lists_them() -> None:
    modules = {name: import_module(f"inference_store.cli.{name}") for name in COMMANDS}
    reading = {
        name: module
        for name, module in modules.items()
        if hasattr(module, "start_service") or name == "doctor"
    }
    assert {"proxy", "ingester", "api", "retention", "migrate"} <= reading.keys()
    assert all(issubclass(module.SETTINGS, SettingsGroup) for module in reading.values())
