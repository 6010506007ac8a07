"""The structure of the project, checked by reading its files.

Each test collects every violation and reports them together.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onceward"
STORES = PACKAGE / "store"
DECISIONS = ROOT / "docs" / "decisions"
DIALECTS = ("sqlite", "postgres")
STATEMENT_FOLDERS = (STORES, *(STORES / dialect for dialect in DIALECTS))

# A band imports only from the bands above it. Modules of one band do not import each other.
BANDS = (
    ("version",),
    ("errors",),
    ("model",),
    ("runtime",),
    ("settings",),
    ("sources",),
    ("ports", "standalone"),
    ("receive", "work", "operate"),
    ("store", "guests", "accelerators", "archive"),
    ("http",),
    ("service",),
    ("inbox",),
    ("frameworks", "cli", "testing"),
    ("__init__", "__main__"),
)
BAND_OF = {name: number for number, names in enumerate(BANDS) for name in names}
# What the first bands use beside the standard library. A dataclass takes 40 times as long to define
# as a struct, and each process defines them all.
LIBRARIES: dict[str, set[str]] = {"version": set(), "errors": set(), "model": {"msgspec"}}

# Values and rules: callers pass the time and the bytes in.
PURE = ("model", "sources")
IMPURE_IMPORTS = {"asyncio", "http", "importlib", "os", "pathlib", "select", "socket", "subprocess"}
IMPURE_IMPORTS |= {"tempfile", "threading", "time", "urllib.request"}
IMPURE_CALLS = {"now", "open", "read_bytes", "read_text", "today", "utcnow"}
ONE_CLOCK = "runtime.clock"

# The flow raises errors; http/errors.py maps them to statuses. A preset may name the status that
# its provider expects.
WITHOUT_STATUSES = ("receive", "operate", "sources", "work")
PROVIDER_DATA = "onceward.sources.presets"
ERROR_STATUSES = range(400, 600)
UNITS = ("BYTES", "CHARACTERS", "DAYS", "EVENTS", "JOBS", "LEVELS", "LIMIT", "SECONDS")

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
DECISION_LINES_MAX = 40

EMPTY_NAMES = {"common", "helper", "helpers", "manager", "misc", "util", "utils"}
GENERATED = {"__pycache__", "build", "dist", "node_modules", "vendor"}
HIDDEN_BUT_OURS = {".ci", ".editorconfig", ".gitignore"}
CODE_SUFFIXES = {"", ".css", ".html", ".js", ".py", ".sh", ".sql", ".toml"}

# Written so that the patterns do not match themselves: this file is searched as well.
HOME_PATH = re.compile(r"(?<![\w.\-/])/(?:ro{2}t|hom[e]|Use[r]s)/")
INDEX_HOST = re.compile(r"pypi[.]org/simple|files[.]pythonhosted|pypi[.]python[.]org")
UNREASONED = re.compile(r"\bTO[D]O\b(?!\([^)]*\w[^)]*\))")
STATEMENT = re.compile(r"^-- name: *(.*)$")
CHARACTER_CLASS = re.compile(r"\[(?:\\.|[^\]])*\]")
POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{+[\d,]+\}+)\+")


# The files.


@cache
def repository_files() -> tuple[Path, ...]:
    """Return the project's text files, without hidden, generated and vendored ones."""

    def walk(folder: Path) -> Iterator[Path]:
        for path in sorted(folder.iterdir()):
            if path.name in GENERATED or path.suffix == ".egg-info" or ".min." in path.name:
                continue
            if path.name.startswith(".") and path.name not in HIDDEN_BUT_OURS:
                continue
            if path.is_dir():
                yield from walk(path)
            elif is_text(path):
                yield path

    return tuple(walk(ROOT))


def is_text(path: Path) -> bool:
    with path.open("rb") as file:
        return b"\0" not in file.read(8192)


def python_files() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


@cache
def modules() -> dict[str, ast.Module]:
    """Return the modules of the package by their dotted names."""
    trees = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 2
        trees[".".join(parts[:-1] if is_package else parts)] = ast.parse(path.read_bytes(), path)
    assert trees, f"no modules in {PACKAGE}"
    return trees


def imports(name: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the dotted target of each import in a module, nested ones included."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(node, name)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def absolute(node: ast.ImportFrom, importer: str) -> str:
    if not node.level:
        return node.module or ""
    package = importer.split(".")
    if (PACKAGE.parent / Path(*package)).is_dir():
        package.append("__init__")
    base = package[: -node.level]
    return ".".join([*base, node.module] if node.module else base)


def own_imports(name: str) -> Iterator[tuple[int, str]]:
    """Yield imports within the package; a name imported from a module counts as the module."""
    for line, target in imports(name):
        if target.split(".")[0] != "onceward":
            continue
        if target in modules():
            yield line, target
        elif (module := target.rpartition(".")[0]) in modules():
            yield line, module
        else:
            yield line, "onceward.__init__"


def member(name: str) -> str:
    """Return the top-level module or folder that contains a module."""
    return name.split(".")[1]


def position(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def matches(pattern: re.Pattern[str], paths: Iterable[Path]) -> list[str]:
    return [
        f"{position(path, number)}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def assert_none(violations: Iterable[str], rule: str) -> None:
    """Fail with the rule and all violations, if there are any."""
    if lines := list(violations):
        pytest.fail("\n  ".join([f"{rule}:", *lines]), pytrace=False)


# The import graph.


def test_every_module_has_a_band() -> None:
    assert_none(
        (name for name in modules() if member(name) not in BAND_OF),
        "assign each module to a band, in BANDS",
    )


def test_a_module_imports_only_from_the_bands_above_its_own() -> None:
    assert_none(
        (
            f"{name}:{line} imports {target}"
            for name in modules()
            for line, target in own_imports(name)
            if not may_import(member(name), member(target))
        ),
        "import only from the bands above",
    )


def may_import(importer: str, target: str) -> bool:
    if not {importer, target} <= BAND_OF.keys():
        return True  # test_every_module_has_a_band reports it
    return importer == target or BAND_OF[target] < BAND_OF[importer]


def test_imports_have_no_cycle() -> None:
    graph = {name: {target for _, target in own_imports(name)} - {name} for name in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        pytest.fail("these modules import each other: " + " <- ".join(cycle))


def test_errors_and_model_need_hardly_more_than_the_standard_library() -> None:
    allowed = sys.stdlib_module_names | {"onceward"}
    assert_none(
        (
            f"{name}:{line} imports {target}"
            for name in modules()
            if member(name) in LIBRARIES
            for line, target in imports(name)
            if target.split(".")[0] not in allowed | LIBRARIES[member(name)]
        ),
        "version and errors use only the standard library, and model msgspec too",
    )


def test_pure_folders_do_no_io_and_read_no_clock() -> None:
    violations = []
    for name in modules():
        if member(name) not in PURE:
            continue
        violations += [
            f"{name}:{line} imports {target}"
            for line, target in imports(name)
            if any(target == bad or target.startswith(f"{bad}.") for bad in IMPURE_IMPORTS)
        ]
        violations += [
            f"{name}:{node.lineno} calls {called}"
            for node in ast.walk(modules()[name])
            if isinstance(node, ast.Call) and (called := call_name(node)) in IMPURE_CALLS
        ]
    assert_none(violations, f"{', '.join(PURE)} must do no I/O and read no clock")


def call_name(call: ast.Call) -> str:
    """Return the last part of the called name: ``now`` for ``datetime.now()``."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def test_only_the_clock_module_reads_the_time() -> None:
    assert_none(
        (
            f"{name}:{line} imports {target}"
            for name in modules()
            if name != f"onceward.{ONE_CLOCK}" and member(name) != "cli"
            for line, target in imports(name)
            if target == "time" or target.startswith("time.")
        ),
        f"only {ONE_CLOCK} may read the time",
    )


def test_error_statuses_stay_in_http() -> None:
    assert_none(
        (
            f"{name}:{line} has {number}"
            for name, module in modules().items()
            if member(name) in WITHOUT_STATUSES and not name.startswith(PROVIDER_DATA)
            for line, number in numbers_without_unit(module)
            if number in ERROR_STATUSES
        ),
        f"{', '.join(WITHOUT_STATUSES)} raise errors; http/errors.py gives them a status",
    )


def numbers_without_unit(module: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the line and value of each integer, except constants whose name ends in a unit."""
    measured = {
        id(node.value)
        for node in module.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if node.target.id.endswith(UNITS)
    }
    for node in ast.walk(module):
        if id(node) in measured:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield node.lineno, node.value


# Sizes and names.


def test_files_are_short() -> None:
    lengths = {
        path: len(path.read_text().splitlines())
        for path in repository_files()
        if path.suffix in {".py", ".sql"}
    }
    assert_none(
        (position(path, lines) for path, lines in lengths.items() if lines > FILE_LINES_MAX),
        f"a file has at most {FILE_LINES_MAX} lines",
    )


def test_functions_are_short() -> None:
    assert_none(
        (
            f"{position(path, node.lineno)} {node.name} has {lines}"
            for path in python_files()
            for node in ast.walk(ast.parse(path.read_bytes(), path))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES_MAX
        ),
        f"a function has at most {FUNCTION_LINES_MAX} lines",
    )


def test_module_names_are_specific() -> None:
    assert_none(
        (
            str(path.relative_to(ROOT))
            for path in python_files()
            if EMPTY_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)
        ),
        "name a module after its content",
    )


# SQL.


def statement_files(folder: Path) -> list[Path]:
    return sorted((folder / "sql").glob("*.sql"))


def statements(folder: Path) -> dict[str, list[str]]:
    """Return the positions at which each named statement of a folder is defined."""
    positions: dict[str, list[str]] = {}
    for path in statement_files(folder):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := STATEMENT.match(line):
                positions.setdefault(match[1].strip(), []).append(position(path, number))
    assert positions, f"no statements in {folder}"
    return positions


def statement_texts(folder: Path) -> dict[str, str]:
    """Return each statement of a folder without comments, line breaks and the dialect's markers."""
    texts = {}
    for path in statement_files(folder):
        _, *parts = re.split(STATEMENT.pattern, path.read_text(), flags=re.MULTILINE)
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            code = " ".join(re.sub(r"--.*", "", text).split()).replace("onceward.", "onceward_")
            texts[name] = code.replace("clock_timestamp()", ":now")
    return texts


def test_the_dialects_define_the_same_statements() -> None:
    first, second = (statements(STORES / dialect) for dialect in DIALECTS)
    unmatched = first.keys() ^ second.keys()
    assert_none(
        (f"{at[0]} {name}" for name, at in (first | second).items() if name in unmatched),
        "a statement that is not shared is in both dialects, under the same name",
    )


@pytest.mark.parametrize("folder", STATEMENT_FOLDERS, ids=lambda folder: folder.name)
def test_a_statement_is_defined_once(folder: Path) -> None:
    assert_none(
        (f"{name}: {', '.join(at)}" for name, at in statements(folder).items() if len(at) > 1),
        "a statement's name is its own",
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_shared_statement_is_in_no_dialect(dialect: str) -> None:
    own = statements(STORES / dialect)
    assert_none(
        (f"{own[name][0]} {name}" for name in own.keys() & statements(STORES).keys()),
        "a statement is shared or in each dialect, never both",
    )


def test_statements_that_read_alike_are_shared() -> None:
    first, second = (statement_texts(STORES / dialect) for dialect in DIALECTS)
    assert_none(
        (name for name in first if first[name] == second.get(name)),
        "a statement that both dialects write alike is in store/sql",
    )


def test_shared_statements_are_written_in_no_dialect() -> None:
    assert_none(
        matches(re.compile(r"onceward_|clock_timestamp|now\(\)"), statement_files(STORES)),
        "a shared statement writes `onceward.` before a table and `:now` for the clock",
    )


@pytest.mark.parametrize("folder", STATEMENT_FOLDERS, ids=lambda folder: folder.name)
def test_a_statement_says_what_it_is_for(folder: Path) -> None:
    violations = []
    for path in statement_files(folder):
        lines = [*path.read_text().splitlines(), ""]
        for number, (line, following) in enumerate(pairwise(lines), 1):
            if STATEMENT.match(line) and not re.match(r"-- \w", following):
                violations.append(position(path, number))
    assert_none(violations, "describe a statement in a comment, on the line after its name")


@pytest.mark.parametrize("folder", STATEMENT_FOLDERS, ids=lambda folder: folder.name)
def test_every_statement_is_used(folder: Path) -> None:
    named = set(strings())
    assert_none(
        (f"{at[0]} {name}" for name, at in statements(folder).items() if name not in named),
        "a statement is used somewhere",
    )


def strings() -> Iterator[str]:
    """Yield each string literal of the package."""
    for module in modules().values():
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


# Documents and leftovers.


def test_decision_records_are_short() -> None:
    records = sorted(DECISIONS.glob("[0-9]*.md"))
    if not records:
        pytest.skip("there are no decision records")
    lengths = {path: len(path.read_text().splitlines()) for path in records}
    assert_none(
        (position(path, lines) for path, lines in lengths.items() if lines > DECISION_LINES_MAX),
        f"a decision record has at most {DECISION_LINES_MAX} lines",
    )


def test_no_file_contains_a_path_of_one_machine() -> None:
    assert_none(matches(HOME_PATH, repository_files()), "remove paths of one machine")


def test_no_file_contains_the_host_of_a_package_index() -> None:
    assert_none(matches(INDEX_HOST, repository_files()), "name packages, not their hosts")


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python 3.11.0 to 3.11.4 match too much: python/cpython#100061."""
    found = [
        f"{position(path, number)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if POSSESSIVE_GROUP.search(CHARACTER_CLASS.sub("x", line))
    ]
    assert_none(found, "write (?>(…)*) instead of (…)*+, which Python 3.11.4 gets wrong")


def test_every_open_task_has_a_reason() -> None:
    code = [path for path in repository_files() if path.suffix in CODE_SUFFIXES]
    assert_none(matches(UNREASONED, code), "give the reason in parentheses")


def test_every_package_is_pinned_once() -> None:
    """Pip combines these files, and refuses two versions of one package."""
    pins: dict[str, list[str]] = {}
    for path in (ROOT, ROOT / "bench", ROOT / "oracles"):
        for line in (path / "constraints.txt").read_text().splitlines():
            name, equals, version = line.partition("==")
            if equals:
                pins.setdefault(name.lower().replace("_", "-"), []).append(version)
    different = {name: versions for name, versions in pins.items() if len(set(versions)) > 1}
    assert different == {}
