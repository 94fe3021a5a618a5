"""The numbers of examples of property tests: a few in every run, all with `make properties`."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = "long"
_SHARE = 10
_TEXTS = st.text()
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS


def register() -> None:
    """Register two profiles of Hypothesis, for tests that name no number of examples.

    Neither has a deadline, or minds slow generators: a busy machine is slow, not wrong.
    """
    for name, most in (("short", 25), (LONG, 100)):
        settings.register_profile(
            name,
            settings.default,
            deadline=None,
            max_examples=most,
            # A landing tries the same examples each time it is repeated.
            derandomize=name == "short",
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("short")


def draw_json(
    scalars: st.SearchStrategy[Any] = _SCALARS,
    names: st.SearchStrategy[str] = _TEXTS,
    *,
    leaves: int = 20,
) -> st.SearchStrategy[Any]:
    """Draw values of JSON: these scalars, in lists and in objects with these names."""
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=leaves,
    )


def examples(most: int, least: int = 10) -> int:
    """Return `most` with `--hypothesis-profile=long`, otherwise a tenth of it, or `least`."""
    if settings.get_current_profile_name() == LONG:
        return most
    return max(most // _SHARE, least)
