"""The demo reads ports from the command line and the environment, and names what it ignores."""

import argparse

import pytest

from inference_store.cli.demo import add_arguments, describe_ignored, read_ports


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_without_a_port_none_is_required() -> None:
    assert read_ports(parse(), {}) == {}


def test_the_command_line_wins_over_the_environment() -> None:
    environment = {"INFERENCE_STORE_API_PORT": "9000", "INFERENCE_STORE_PROXY_PORT": "9001"}
    assert read_ports(parse(), environment) == {"api": 9000, "proxy": 9001}
    assert read_ports(parse("--port", "9002"), environment) == {"api": 9002, "proxy": 9001}


def test_names_the_setting_of_a_malformed_port(subtests: pytest.Subtests) -> None:
    for text in ("0", "65536", "http", "-1", "²"):
        with subtests.test(text):
            with pytest.raises(argparse.ArgumentTypeError, match="INFERENCE_STORE_API_PORT"):
                read_ports(parse(), {"INFERENCE_STORE_API_PORT": text})
            with pytest.raises(SystemExit):
                parse(f"--port={text}")


def test_settings_that_are_ignored_are_named_without_their_values() -> None:
    assert describe_ignored({"PATH": "/bin", "INFERENCE_STORE_API_PORT": "9000"}) == ""
    sentence = describe_ignored({"INFERENCE_STORE_POSTGRES_DSN": "postgresql://production/real"})
    assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN." in sentence
    assert "takes INFERENCE_STORE_API_PORT and INFERENCE_STORE_PROXY_PORT" in sentence
    assert "production" not in sentence
