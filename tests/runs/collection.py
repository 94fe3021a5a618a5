"""pytest: what is imported and collected is no garbage, and is not searched for it again.

Each full search would walk the objects of all modules and tests, a third of a second at a time.
"""

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
