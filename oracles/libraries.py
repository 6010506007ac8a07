"""All verifiers. ``python -m oracles.libraries`` writes `libraries.json`, which docs use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

from oracles import npm
from oracles.pypi import development, messaging, payments, standard
from oracles.verifier import Verifier

HERE: Final = Path(__file__).parent
FILE: Final = HERE / "libraries.json"
VERIFIERS: Final = (
    *standard.VERIFIERS,
    *payments.VERIFIERS,
    *development.VERIFIERS,
    *messaging.VERIFIERS,
    *npm.VERIFIERS,
)


def libraries_by_preset() -> dict[str, str]:
    """Return the libraries that check each preset, with their versions."""
    pypi_versions = _pypi_versions()
    npm_versions = json.loads((HERE / "package.json").read_bytes())["dependencies"]

    def label(verifier: Verifier) -> str:
        package = verifier.package
        is_npm = verifier.is_npm
        version = npm_versions[package] if is_npm else pypi_versions[_key(package)]
        notes = [f"({note})" for note in ("npm" if is_npm else "", verifier.scope) if note]
        return " ".join([package, _compatible_version(version), *notes])

    labels: dict[str, list[str]] = {}
    for verifier in VERIFIERS:
        labels.setdefault(verifier.preset, []).append(label(verifier))
    return {preset: ", ".join(dict.fromkeys(labels[preset])) for preset in sorted(labels)}


def _pypi_versions() -> dict[str, str]:
    """Return the pinned versions of the project and of the libraries."""
    paths = (HERE.parent / "constraints.txt", HERE / "constraints.txt")
    lines = [line for path in paths for line in path.read_text().splitlines()]
    pairs = [line.split("==") for line in lines if "==" in line]
    return {_key(name): version for name, version in pairs}


def _key(package: str) -> str:
    """Normalize a package name as PyPI does."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _compatible_version(version: str) -> str:
    """Return the part of a version that changes with an incompatible release."""
    numbers = version.split(".")
    return ".".join(numbers[:2]) if numbers[0] == "0" else numbers[0]


def main() -> None:
    """Write `libraries.json`."""
    FILE.write_text(json.dumps(libraries_by_preset(), indent=2) + "\n")


if __name__ == "__main__":
    main()
