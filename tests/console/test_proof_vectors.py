"""The console's verifier answers the same questions as the store does."""

import json
import subprocess
import sys
from pathlib import Path

from .proof_vectors import make_vectors

HERE = Path(__file__).parent
FILE = HERE / "proof_vectors.json"
NODE = Path(sys.prefix) / "bin" / "node"


def test_the_file_is_what_the_store_answers() -> None:
    command = "python -m tests.console.proof_vectors > tests/console/proof_vectors.json"
    assert json.loads(FILE.read_text()) == make_vectors(), command


def test_the_console_answers_the_same() -> None:
    command = [str(NODE), "--no-warnings", str(HERE / "run_vectors.mjs")]
    answers = subprocess.check_output(command, input=FILE.read_bytes())
    assert json.loads(answers) == json.loads(FILE.read_text())
