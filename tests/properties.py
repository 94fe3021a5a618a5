"""How many examples a property test tries: a few in every run, all of them by `make properties`."""

from hypothesis import settings

LONG = "long"
_SHARE = 10
_LEAST = 10


def register() -> None:
    """Hypothesis' two profiles, with the examples of tests that name no number.

    Neither has a deadline: a busy machine is slow, not wrong.
    """
    for name, most in (("short", 25), (LONG, 100)):
        settings.register_profile(name, settings.default, deadline=None, max_examples=most)
    settings.load_profile("short")


def examples(most: int) -> int:
    """So many with `--hypothesis-profile=long`, else a tenth of them."""
    if settings.get_current_profile_name() == LONG:
        return most
    return max(most // _SHARE, _LEAST)
