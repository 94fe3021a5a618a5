"""Debian's chromium, as the tests and the benchmark of the console start it."""

from typing import Final

CHROMIUM: Final = "/usr/bin/chromium"
OPTIONS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    # Each window would load pages of the browser's own, for 0.7 s of CPU beside what is tested.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup,WebUIOmniboxFullPopup",
)
