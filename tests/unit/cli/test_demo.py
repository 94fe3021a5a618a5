"""What the demo takes from the command line and from the environment, and what it says of it."""

import argparse

import pytest

from inference_store.cli.demo import add_arguments, describe_ignored, read_ports


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_nobody_asks_for_a_port() -> None:
    assert read_ports(parsed(), {}) == {}


def test_the_command_line_is_asked_before_the_environment() -> None:
    environment = {"INFERENCE_STORE_API_PORT": "9000", "INFERENCE_STORE_PROXY_PORT": "9001"}
    assert read_ports(parsed(), environment) == {"api": 9000, "proxy": 9001}
    assert read_ports(parsed("--port", "9002"), environment) == {"api": 9002, "proxy": 9001}


@pytest.mark.parametrize("text", ["0", "65536", "http", "-1", "²"])
def test_what_is_no_port_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="INFERENCE_STORE_API_PORT"):
        read_ports(parsed(), {"INFERENCE_STORE_API_PORT": text})
    with pytest.raises(SystemExit):
        parsed(f"--port={text}")


def test_settings_that_are_ignored_are_named_without_their_values() -> None:
    assert describe_ignored({"PATH": "/bin", "INFERENCE_STORE_API_PORT": "9000"}) == ""
    said = describe_ignored({"INFERENCE_STORE_POSTGRES_DSN": "postgresql://production/real"})
    assert "Ignored from your environment: INFERENCE_STORE_POSTGRES_DSN." in said
    assert "takes INFERENCE_STORE_API_PORT and INFERENCE_STORE_PROXY_PORT" in said
    assert "production" not in said
