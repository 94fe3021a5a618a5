"""Questions to the REST API, and the same questions as `curl`."""

import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from inference_store.local.errors import LocalStackError

_TIMEOUT_SECONDS = 30.0
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Rest:
    """The API at one address."""

    address: str

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON. Raises LocalStackError with the API's own text of a refusal."""
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            words = error.read().decode("utf-8", errors="replace")
            raise LocalStackError(f"{method} {path} answered {error.code}: {words}") from error
        except OSError as error:
            raise LocalStackError(f"{method} {path}: the API does not answer: {error}") from error

    def count(self, model_id: str, body: Mapping[str, Any]) -> int:
        """Return how many indexed inferences of this model match. Raises LocalStackError."""
        path = f"/v1/models/{model_id}/inferences/count"
        return int(self.ask("POST", path, body)["count"])

    def inference_ids(self, model_id: str) -> Iterator[str]:
        """Yield the id of every indexed inference of this model, page by page."""
        body: dict[str, Any] = {"limit": _PAGE, "include": []}
        while True:
            page = self.ask("POST", f"/v1/models/{model_id}/inferences/query", body)
            yield from (item["inference_id"] for item in page["items"])
            if page["next"] is None:
                return
            body["cursor"] = page["next"]

    def curl(self, path: str, body: Any) -> str:
        """Return the question as a command for a shell."""
        return (
            f"curl -s {self.address}{path} \\\n"
            f"  -H 'Content-Type: application/json' \\\n"
            f"  -d {shlex.quote(json.dumps(body))}"
        )
