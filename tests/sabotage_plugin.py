"""A plugin for pytest, `-p tests.sabotage_plugin`: run tests with the sabotage that is selected."""

from prove.sabotage import apply


def pytest_configure() -> None:
    """Break what `PROVE_SABOTAGE` names, in this process."""
    apply()
