"""Fixtures for every test in this folder."""

from collections.abc import Iterator

import pytest

from oracles import npm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Do not fail on warnings: most are the libraries' own."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def stop_node() -> Iterator[None]:
    """Stop Node after the last test."""
    yield
    npm.close()
