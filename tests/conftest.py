"""Options of the whole test suite."""

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# The same examples each time: a change is to blame for a failure, and not the draw.
settings.register_profile("commbench", derandomize=True, database=None, deadline=None)
settings.load_profile("commbench")
# Nor the company: Hypothesis also draws constants of the modules that happen to be loaded, and has no setting for that.
providers.is_local_module_file = lambda path: False  # type: ignore[attr-defined, assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that need gigabytes and minutes too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="needs gigabytes and minutes: run with --slow"))
