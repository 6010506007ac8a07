"""Which tests run which lines: traced once, and kept until the code or the test changes."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from mutants.mutant import Mutant
from mutants.targets import MODULES, ROOT, files, files_of_tests
from mutants.tree import Tree

COVERAGE: Final = ROOT / "mutants" / ".coverage.json"
FILES_PER_RUN: Final = 12
RUN_SECONDS: Final = 900.0


@dataclass(frozen=True)
class Test:
    """A test that passes on the unchanged tree."""

    name: str
    seconds: float
    covered: dict[str, frozenset[int | str]]
    """The lines that it runs by file, and the names of its statements."""


def load_tests(
    tree: Tree, show: Callable[[int, int], None], *, only: Sequence[str] = ()
) -> list[Test]:
    """Return tests with the lines that they cover: all, or those of the files in `only`.

    Trace those that are new or changed.
    """
    known = json.loads(COVERAGE.read_text()) if COVERAGE.exists() else {}
    sources = _hash(ROOT / path for path in files(MODULES))
    hashes = {name: sources + _hash([ROOT / name]) for name in files_of_tests()}
    known = {
        name: known[name] for name in hashes if known.get(name, {}).get("hash") == hashes[name]
    }
    wanted = [name for name in hashes if not only or name in only]
    missing = [name for name in wanted if name not in known]
    for index in range(0, len(missing), FILES_PER_RUN):
        show(index, len(missing))
        names = missing[index : index + FILES_PER_RUN]
        found = _trace(tree, names)
        for name in names:
            tests = {test: entry for test, entry in found.items() if test.split("::")[0] == name}
            known[name] = {"hash": hashes[name], "tests": tests}
        COVERAGE.write_text(json.dumps(known))
    return [
        Test(name, entry["seconds"], {file: frozenset(at) for file, at in entry["covered"].items()})
        for file in wanted
        for name, entry in known[file]["tests"].items()
        if entry["passed"] and entry.get("covered")
    ]


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _trace(tree: Tree, names: Sequence[str]) -> dict[str, Any]:
    output = tree.folder / "coverage.json"
    output.unlink(missing_ok=True)
    plan = {"coverage": str(output), "core": [str(path) for path in files(MODULES)]}
    run = tree.run_tests(names, plan, seconds=RUN_SECONDS)
    if not output.exists():
        message = f"the tests could not be traced:\n{run.output[-2000:]}"
        raise RuntimeError(message)
    traced: dict[str, Any] = json.loads(output.read_text())
    return traced


def covering(mutant: Mutant, tests: Iterable[Test]) -> list[Test]:
    """Return the tests that run what a mutant changes, the quickest first.

    Those that use the conditional part of a statement come before the others.
    """
    places = _places(mutant)
    found = [test for test in tests if _covers(test, places) and not _is_elsewhere(test, mutant)]
    conditional = {"statement": {f"{mutant.scope} if {mutant.condition}"}}
    return sorted(found, key=lambda test: (not _covers(test, conditional), test.seconds))


def _covers(test: Test, places: Mapping[str, AbstractSet[int | str]]) -> bool:
    return any(not lines.isdisjoint(test.covered.get(file, ())) for file, lines in places.items())


def _is_elsewhere(test: Test, mutant: Mutant) -> bool:
    """Return whether a test runs on the other store, by its parameters."""
    parameters = test.name.partition("[")[2]
    return any(
        f"store/{store}/" in mutant.path and other in parameters and store not in parameters
        for store, other in (("sqlite", "postgres"), ("postgres", "sqlite"))
    )


def _places(mutant: Mutant) -> dict[str, set[int | str]]:
    if mutant.path.endswith(".sql"):
        return {"statement": set(_statements_with(mutant))}
    if mutant.scope.isupper():
        word = re.compile(rf"\b{mutant.scope}\b")
        return {
            file: {number for number, line in enumerate(lines, 1) if word.search(line)}
            for file, lines in _lines().items()
        }
    last = mutant.line + mutant.before.count("\n")
    return {mutant.path: set(range(mutant.line, last + 1))}


@cache
def _lines() -> dict[str, list[str]]:
    return {str(path): (ROOT / path).read_text().splitlines() for path in files(MODULES)}


def _statements_with(mutant: Mutant) -> Iterator[str]:
    """Yield the statement that is changed, and those that use it if it is a fragment."""
    yield mutant.scope
    source = (ROOT / mutant.path).read_text()
    _, *parts = re.split(r"^-- name: (\w+)$", source, flags=re.MULTILINE)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        if f"-- use {mutant.scope}\n" in text:
            yield name
