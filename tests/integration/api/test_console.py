"""A setting switches the console off."""

import pytest

from .conftest import MakeApp, make_client


@pytest.mark.parametrize(("console", "status"), [("on", 200), ("off", 404)])
async def test_setting_switches_console_off(make_app: MakeApp, console: str, status: int) -> None:
    async with make_client(make_app(console=console)) as client:
        assert (await client.get("/console/")).status_code == status
        assert (await client.get("/v1/me")).status_code == 200
