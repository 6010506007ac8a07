"""The limit on open files follows from the limit on connections."""

import subprocess
import sys

SCRIPT = """
import logging, resource
from onceward.http.server.server import OTHER_FILES, allow_connections
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_connections(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OTHER_FILES)
"""


def run(soft: int, hard: int) -> tuple[str, str]:
    """Return what a process with these limits prints: the connections that it can have."""
    script = SCRIPT.format(soft=soft, hard=hard)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout.strip(), done.stderr.strip()


def test_a_low_limit_is_raised() -> None:
    assert run(256, 4096) == ("1000", "")


def test_a_sufficient_limit_stays() -> None:
    assert run(3000, 4096) == ("2800", "")


def test_a_limit_that_cannot_be_raised_far_enough_is_reported() -> None:
    connections, warning = run(256, 600)
    assert connections == "400"
    assert warning.startswith("the system allows this process 600 open files, too few for max_conn")
