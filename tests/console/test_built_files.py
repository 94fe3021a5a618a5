"""The committed files equal those that `make console` builds."""

import os
import subprocess
from pathlib import Path

from inference_store.api.site import FILES

ROOT = Path(__file__).parents[2]


def test_committed_files_match_the_source(tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    command = ["npm", "--prefix", str(ROOT / "console"), "run", "--silent", "build", "--"]
    subprocess.run([*command, "--outDir", str(tmp_path)], check=True, env=environment)
    built, committed = read_files(tmp_path), read_files(FILES)
    assert sorted(built) == sorted(committed)
    different = [name for name, content in built.items() if committed[name] != content]
    assert not different, "`make console`, and commit what it writes"


def read_files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
