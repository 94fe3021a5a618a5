"""The number of queries that may run at once depends on the size of the pool."""

import pytest
from pydantic import ValidationError

from inference_store.platform.settings import ApiSettings
from tests.settings import make_settings


def _make_settings(**values: int) -> ApiSettings:
    return make_settings(ApiSettings, **values)


def test_unset_they_are_a_share_of_the_pool() -> None:
    for pool, most, of_one in ((1, 1, 1), (2, 1, 1), (5, 3, 1), (10, 6, 3), (40, 24, 12)):
        settings = _make_settings(postgres_pool_size=pool)
        assert (settings.most_queries, settings.most_queries_of_one) == (most, of_one), pool


def test_given_they_leave_a_connection() -> None:
    assert _make_settings(queries_at_once=9).most_queries == 9
    with pytest.raises(ValidationError, match="leaves none"):
        _make_settings(queries_at_once=10)
    with pytest.raises(ValidationError, match="more than the 6"):
        _make_settings(queries_at_once_per_caller=7)
