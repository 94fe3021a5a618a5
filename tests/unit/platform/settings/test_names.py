import pytest
from pydantic import ValidationError

from inference_store.platform.settings import (
    ApiSettings,
    IngesterSettings,
    UnknownSetting,
    refuse_unknown,
)
from tests.settings import make_settings


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownSetting, match="INFERENCE_STORE_POSTGRES_DSN"):
        refuse_unknown({"INFERENCE_STORE_POSTGRESS_DSN": "x"})
    with pytest.raises(UnknownSetting) as refusal:
        refuse_unknown({"INFERENCE_STORE_API_PROT": "1", "INFERENCE_STORE_S3_BUKET": "x"})
    for line, name in zip(str(refusal.value).splitlines(), ("API_PROT", "S3_BUKET"), strict=True):
        assert line.startswith(f"There is no setting INFERENCE_STORE_{name}.")


def test_names_of_others_are_left_alone() -> None:
    """Who asks the store and starts it does so in one shell: names of the client are there."""
    refuse_unknown({"PATH": "x", "INFERENCE_STORE_API_PORT": "1"})
    refuse_unknown({"INFERENCE_STORE_URL": "https://store.example", "INFERENCE_STORE_KEY": "x"})


def test_the_default_bucket_is_always_allowed() -> None:
    settings = IngesterSettings(s3_bucket="a", s3_allowed_buckets=" b, ,c")
    assert settings.buckets == {"a", "b", "c"}


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
