"""The floors of the dependencies, the pinned versions and the table in SECURITY.md agree."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([\w-]+) \| ([\d.]+) \| .*(?:CVE|GHSA|PYSEC)-", re.MULTILINE)


def floors() -> dict[str, Version]:
    """Return the lowest version of each dependency, by its normalised name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    floors: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        versions = [part.version for part in requirement.specifier if part.operator == ">="]
        assert len(versions) == 1, f"{requirement} needs one floor"
        floors[canonicalize_name(requirement.name)] = Version(versions[0])
    return floors


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


def test_every_dependency_is_pinned_at_or_above_its_floor() -> None:
    pinned = pins()
    too_low = {
        name: f"pinned to {pinned.get(name)}, but the floor is {floor}"
        for name, floor in floors().items()
        if name not in pinned or pinned[name] < floor
    }
    assert not too_low


def test_the_floors_are_at_or_above_those_of_the_advisories() -> None:
    listed = {
        canonicalize_name(name): Version(version)
        for name, version in ROW.findall((ROOT / "SECURITY.md").read_text())
    }
    assert {"click", "cryptography", "h11", "starlette"} <= listed.keys()
    declared = floors()
    assert {name: declared.get(name) for name in listed} == listed
