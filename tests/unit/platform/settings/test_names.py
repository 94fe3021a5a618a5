import pytest

from inference_store.platform.settings import IngesterSettings, UnknownSetting, refuse_unknown


def test_an_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownSetting, match="INFERENCE_STORE_POSTGRES_DSN"):
        refuse_unknown({"INFERENCE_STORE_POSTGRESS_DSN": "x"})
    with pytest.raises(UnknownSetting) as refusal:
        refuse_unknown({"INFERENCE_STORE_API_PROT": "1", "INFERENCE_STORE_S3_BUKET": "x"})
    assert [line.split(".")[0] for line in str(refusal.value).splitlines()] == [
        "There is no setting INFERENCE_STORE_API_PROT",
        "There is no setting INFERENCE_STORE_S3_BUKET",
    ]


def test_names_of_others_are_left_alone() -> None:
    """Who asks the store and starts it does so in one shell: names of the client are there."""
    refuse_unknown({"PATH": "x", "INFERENCE_STORE_API_PORT": "1"})
    refuse_unknown({"INFERENCE_STORE_URL": "https://store.example", "INFERENCE_STORE_KEY": "x"})


def test_the_default_bucket_is_always_allowed() -> None:
    settings = IngesterSettings(s3_bucket="a", s3_allowed_buckets=" b, ,c")
    assert settings.buckets == {"a", "b", "c"}
