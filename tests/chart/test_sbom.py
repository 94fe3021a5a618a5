"""`make sbom`: every package of the lock is in it, with its hashes."""

import json
import re
import subprocess
from pathlib import Path

from .rendering import ROOT


def test_it_lists_the_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "sbom", f"SBOM={tmp_path / 'sbom.json'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "sbom.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "inference-store"
    parts = {f"{one['name']}=={one['version']}" for one in found["components"]}
    lock = (ROOT / "requirements.lock").read_text()
    assert parts == set(re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE))
    assert all(one["externalReferences"][0]["hashes"] for one in found["components"])
