"""Run the examples of a page in the folder that is current: run_examples.py PAGE URL.

Prints what differs, and as the last line how many examples there were, or -1 if some differ.
"""

import doctest
import sys
from contextlib import redirect_stdout
from pathlib import Path

with redirect_stdout(sys.stderr):  # it prints where its settings are, the first time
    import ultralytics.utils  # noqa: F401

_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def main(page: str, url: str) -> None:
    text = Path(page).read_text().replace("http://127.0.0.1:8080", url)
    text = text.replace("\n```", "\n\n")  # a fence ends what is printed
    test = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    results = doctest.DocTestRunner(optionflags=_OPTIONS).run(test)
    print(-1 if results.failed else len(test.examples))


if __name__ == "__main__":
    main(*sys.argv[1:])
