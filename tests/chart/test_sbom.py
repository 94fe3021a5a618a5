"""`make sbom` lists every package of the lock with its hashes."""

import json
import re
import subprocess
from pathlib import Path

from .rendering import ROOT


def test_lists_the_packages_of_the_lock(tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "sbom", f"SBOM={tmp_path / 'sbom.json'}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sbom = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == "inference-store"
    parts = {f"{component['name']}=={component['version']}" for component in sbom["components"]}
    lock = (ROOT / "requirements.lock").read_text()
    assert parts == set(re.findall(r"^[\w.-]+==[^\s;]+", lock, re.MULTILINE))
    assert all(component["externalReferences"][0]["hashes"] for component in sbom["components"])
