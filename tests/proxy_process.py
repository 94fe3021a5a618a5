"""A real proxy process in front of model servers that run elsewhere."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers.ports import free_port
from tests.service_process import Service


class Proxy(Service):
    """One `inference-store proxy`; `http` and `grpc` are host:port, the same after a restart.

    `upstreams` and `models` are the entries of its configuration file. A context manager: it stops
    on leaving.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        folder: Path,
        upstreams: Sequence[Mapping[str, Any]],
        models: Sequence[Mapping[str, Any]] = (),
        **changes: str,
    ) -> None:
        ports = free_port(), free_port()
        self.http, self.grpc = (f"127.0.0.1:{port}" for port in ports)
        self.url = f"http://{self.http}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "proxy.yaml"
        # JSON is YAML
        file.write_text(json.dumps({"upstreams": list(upstreams), "models": list(models)}))
        settings = {
            "PROXY_CONFIG": str(file),
            "PROXY_PORT": str(ports[0]),
            "PROXY_GRPC_PORT": str(ports[1]),
            "PROXY_ADMIN_PORT": "0",
            "PROXY_REPORT_SECONDS": "1",
            **changes,
        }
        environment_changes = {f"INFERENCE_STORE_{name}": value for name, value in settings.items()}
        super().__init__("proxy", {**environment, **environment_changes}, folder)

    def read_log(self, action: str) -> list[dict[str, Any]]:
        lines = [line for line in self.text.splitlines() if f'"{action}"' in line]
        return [entry for entry in map(json.loads, lines) if entry["action"] == action]


def upstream(name: str, *protocols: str, **where: Any) -> dict[str, Any]:
    """Return an entry of `upstreams`, with `url`, `grpc`, `models`, … as in the file."""
    return {"name": name, "protocols": list(protocols), **where}
