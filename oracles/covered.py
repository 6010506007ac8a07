"""Which presets are held against which libraries: `python -m oracles.covered` writes it down."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from oracles import npm, sdks
from oracles.oracle import Oracle

HERE: Final = Path(__file__).parent
FILE: Final = HERE / "covered.json"
ORACLES: Final = (*sdks.ORACLES, *npm.ORACLES)


def _key(package: str) -> str:
    """A package's name, however it is written."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _pins() -> dict[str, str]:
    """The versions from PyPI, of the project and of the oracles."""
    paths = (HERE.parent / "constraints.txt", HERE / "constraints.txt")
    lines = [line for path in paths for line in path.read_text().splitlines()]
    pairs = [line.split("==") for line in lines if "==" in line]
    return {_key(name): version for name, version in pairs}


def _family(version: str) -> str:
    """What changes when a library changes much: the first number that is not zero."""
    numbers = version.split(".")
    return ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]


def covered() -> dict[str, str]:
    """The libraries that are asked about each preset, with their versions."""
    pypi = _pins()
    from_npm = json.loads((HERE / "package.json").read_bytes())["dependencies"]

    def shown(oracle: Oracle) -> str:
        package = oracle.package
        version = from_npm[package] if oracle.is_npm else pypi[_key(package)]
        notes = [f"({note})" for note in ("npm" if oracle.is_npm else "", oracle.only) if note]
        return " ".join([package, _family(version), *notes])

    found: dict[str, list[str]] = {}
    for oracle in ORACLES:
        found.setdefault(oracle.preset, []).append(shown(oracle))
    return {preset: ", ".join(dict.fromkeys(found[preset])) for preset in sorted(found)}


def main() -> None:
    """Write `covered.json`."""
    FILE.write_text(json.dumps(covered(), indent=2) + "\n")


if __name__ == "__main__":
    main()
