"""pytest: exclude imported and collected objects from garbage collection.

Each full collection would visit all of them, for a third of a second.
"""

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
