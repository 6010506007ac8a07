"""What the tests here share."""

from collections.abc import Iterator

import pytest

from oracles import npm


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries warn of what they like: it is not this project's to mend."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session", autouse=True)
def node_ends() -> Iterator[None]:
    """Node ends with the tests."""
    yield
    npm.close()
