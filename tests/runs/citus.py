"""`python -m tests.runs.citus FOLDER PYTEST...` runs a selection of tests on Citus.

It uses the cluster that INFERENCE_STORE_TEST_CITUS_DSN names, or three nodes of this run, with the
Citus that is installed with Postgres or that FOLDER/build.sh installs. FOLDER may be ''.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.servers.citus import find_citus
from tests.servers.environment import OWN_CITUS, TEST_CITUS
from tests.servers.versions import MissingServer

_WHOLE = "tests/integration"
# One or two files of each kind that write to distributed tables, read several shards or models,
# lock, or change partitions; docs/how-to/tests.md says how to run the others.
SELECTED: Mapping[str, str] = {
    # The first, since the longest tests are here.
    f"{_WHOLE}/query": "every form of a search",
    f"{_WHOLE}/citus": "what `distribute` does, and that a route of a model asks one shard",
    f"{_WHOLE}/ingester/test_pipeline.py": "Kafka to rows, books and offsets in one transaction",
    f"{_WHOLE}/ingester/test_held_arrivals.py": "holds and tombstones meet what arrives",
    f"{_WHOLE}/retention/test_erasures.py": "marks, objects, rows, blobs of several models",
    f"{_WHOLE}/retention/test_holds.py": "what is held stays",
    f"{_WHOLE}/retention/test_runs.py": "policies, and partitions that go whole",
    f"{_WHOLE}/index/test_partitions.py": "partitions are made, analysed and dropped",
    f"{_WHOLE}/api/test_across.py": "several models: several shards in one statement",
    f"{_WHOLE}/api/test_aggregates.py": "aggregates, of one model and across",
    f"{_WHOLE}/api/test_edits_and_erasures.py": "locks on rows of other nodes",
    f"{_WHOLE}/api/test_metadata_edits.py": "revisions, and objects that models share",
    f"{_WHOLE}/api/test_erasures.py": "erasures as they are asked for",
    f"{_WHOLE}/api/test_exports.py": "exports: lists of members, and parts",
    f"{_WHOLE}/api/test_exports_erased.py": "erasures reach exports",
    f"{_WHOLE}/api/test_streams.py": "streams, each page a statement of its own",
}


def main(arguments: Sequence[str]) -> int:
    """Run the selected tests on Citus; without one, print the reason and return 0."""
    folder, *command = arguments
    try:
        cluster = os.environ.get(TEST_CITUS) or _prepare_own(folder)
    except MissingServer as missing:
        print(f"NOT RUN on Citus: {missing}, and {TEST_CITUS} names no cluster.")
        return 0
    environment = os.environ | {TEST_CITUS: cluster}
    # A test that tests.runs.steps repeats is named.
    named = any("::" in argument for argument in command)
    tests = () if named else SELECTED
    return subprocess.run([*command, *tests], env=environment, check=False).returncode


def _prepare_own(folder: str) -> str:
    """Install Citus if FOLDER has a build.sh. Raises MissingServer if there is still none."""
    build = Path(folder) / "build.sh"
    if folder and build.exists():
        subprocess.run([build], check=True)
    find_citus()
    return OWN_CITUS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
