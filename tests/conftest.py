"""Options of the whole test suite."""

import pytest
from hypothesis import settings

# The same examples each time: a change is to blame for a failure, and not the draw.
settings.register_profile("commbench", derandomize=True, database=None, deadline=None)
settings.load_profile("commbench")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that need gigabytes and minutes too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="needs gigabytes and minutes: run with --slow"))
