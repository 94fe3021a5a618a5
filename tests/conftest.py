"""What all tests need: the servers, and what is made on them for one test."""

pytest_plugins = [
    "tests.servers.plugin",
    "tests.servers.fixtures",
    "tests.servers.secured_fixtures",
    "tests.upstreams.fixtures",
]
