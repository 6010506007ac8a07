"""The mutation tool makes the changes that it lists, and its page has the last result."""

import ast
import signal
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from mutants import document, results
from mutants.__main__ import in_module, main, open_survivors, untried
from mutants.mutant import Identity, Mutant, numbered
from mutants.python_mutants import python_mutants
from mutants.statement_tracer import trace_statements
from mutants.targets import ROOT, files_of_tests
from mutants.tree import Run
from mutants.trials import (
    KILLED,
    Inconclusive,
    Outcome,
    Trial,
    all_mutants,
    in_random_order,
    outcome_of,
)
from onceward.runtime.failpoints import Failpoints
from onceward.settings import Settings
from onceward.store.postgres.connections import Connection
from onceward.store.postgres.store import PostgresStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder for a module of one function."""
    return tmp_path


def mutants_of(text: str, folder: Path) -> list[tuple[str, str]]:
    """Return the kinds of the mutants of a function, each with its new text."""
    path = folder / "module.py"
    path.write_text(text)
    changed = []
    for mutant in python_mutants(path):
        mutant.apply(folder)
        ast.parse(path.read_text())
        changed.append((mutant.kind, path.read_text()))
        path.write_text(text)
    return changed


FUNCTION = "def f(self, x):\n    {}\n    return x\n"


MUTATED_LINES: list[tuple[str, str, str]] = [
    ("if x > 0: x()", "move a boundary", "if (x >= 0): x()"),
    ("if x > 0: x()", "invert a condition", "if (not (x > 0)): x()"),
    ("if x > 0: x()", "move a number", "if x > 1: x()"),
    ("if x > 0: x()", "drop a call", "if x > 0: pass"),
    ("self.sent += x", "drop a side effect", "pass"),
    ("while x: return 1.5", "drop return", "while x: pass"),
    ("y = x and not self", "swap and/or", "y = ((x) or (not self))"),
    ("y = x and not self", "drop not", "y = x and (self)"),
    ("y = min(x, self)", "swap min/max", "y = max(x, self)"),
    ("y = [i for i in x if i]", "invert a condition", "y = [i for i in x if (not (i))]"),
    ("x(solo=True)", "flip a flag", "x(solo=False)"),
    ("if x: raise ValueError", "drop raise", "if x: pass"),
]


def test_a_line_is_mutated(folder: Path, subtests: pytest.Subtests) -> None:
    for line, kind, mutated in MUTATED_LINES:
        with subtests.test(line=line, kind=kind):
            found = mutants_of(FUNCTION.format(line), folder)
            assert (kind, FUNCTION.format(mutated)) in found


def test_messages_and_failpoints_are_left_alone(folder: Path, subtests: pytest.Subtests) -> None:
    for line in (
        '_log.warning("no")',
        'x.add_note(f"{x + 1}")',
        "self._failpoints.reach('a')",
        "y: int = x",
    ):
        with subtests.test(line=line):
            assert mutants_of(FUNCTION.format(line), folder) == []


def test_every_mutant_is_at_its_place_in_the_tree() -> None:
    texts: dict[str, bytes] = {}
    for mutant in all_mutants():
        source = texts.setdefault(mutant.path, (ROOT / mutant.path).read_bytes())
        end = mutant.start + len(mutant.before.encode())
        assert source[mutant.start : end].decode() == mutant.before
    assert len(texts) > 30


def test_mutated_modules_can_be_parsed(folder: Path) -> None:
    modules = [each for each in in_random_order(all_mutants(), 1) if each.path.endswith(".py")]
    for mutant in modules[:100]:
        path = folder / mutant.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / mutant.path).read_bytes())
        mutant.apply(folder)
        ast.parse(path.read_text())


def test_equal_changes_of_a_function_are_numbered_and_keep_their_identity(folder: Path) -> None:
    first, second = identities("def f(x):\n    x()\n    x()\n", folder)
    assert (first.occurrence, second.occurrence) == (1, 2)
    assert first._replace(occurrence=2) == second
    moved = "VALUE = None\n\n\ndef f(x):\n    # a comment\n    x()\n    x()\n"
    assert identities(moved, folder) == [first, second]


def identities(text: str, folder: Path) -> list[Identity]:
    path = folder / "module.py"
    path.write_text(text)
    return [mutant.identity for mutant in numbered(python_mutants(path))]


def test_every_mutant_has_its_own_identity() -> None:
    mutants = all_mutants()
    assert len({mutant.identity for mutant in mutants}) == len(mutants)


RUNS: list[tuple[Run, Outcome, str]] = [
    (Run(0, ""), Outcome.SURVIVED, ""),
    (Run(1, "1 failed\nFAILED tests/a.py::b - assert\n"), Outcome.KILLED, "tests/a.py::b"),
    (Run(2, "ERROR tests/a.py - NameError"), Outcome.KILLED, "tests/a.py"),
    (
        Run(4, "ImportError while loading conftest '/tmp/x/tests/conftest.py'."),
        Outcome.KILLED,
        "tests/conftest.py",
    ),
    (Run(-signal.SIGALRM, ""), Outcome.TIMED_OUT, ""),
    (Run(-signal.SIGKILL, "", timed_out=True), Outcome.TIMED_OUT, ""),
]


def test_the_exit_code_of_pytest_decides_the_outcome(subtests: pytest.Subtests) -> None:
    for run, outcome, test in RUNS:
        with subtests.test(run=run):
            assert outcome_of(run) == (outcome, test)


def test_a_failure_of_pytest_itself_is_no_outcome(subtests: pytest.Subtests) -> None:
    for code in (1, 3, 4, 5, -signal.SIGSEGV):
        with (
            subtests.test(code=code),
            pytest.raises(Inconclusive, match=f"exit code {code}:\nno such option"),
        ):
            outcome_of(Run(code, "no such option"))


def test_the_statements_of_a_message_are_covered_when_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    covered: set[str] = set()
    trace_statements(covered.add, monkeypatch)
    store = PostgresStore(Settings(database_url="postgresql://localhost/none"), Failpoints())
    assert covered == set()
    with pytest.raises(KeyError):
        store._prepared.settle.bind({})
    assert covered == {"settle_done", "settle_done if committing"}
    store._claims._end.run(cast(Connection, None), {}).close()
    assert covered >= {"end_leases", "wake_keys"}
    store._claims._claim.run(cast(Connection, None), {}, without=("reclaim",)).close()
    assert "claim" in covered
    assert "reclaim" not in covered
    store._queries("record_new")
    assert "record_new" in covered


INCLUDED: list[tuple[str, str]] = [
    ("record_new", "ORDER BY source, event_id, id"),
    ("settle_done", "FOR KEY SHARE"),
    ("settle_done", "EXISTS (SELECT 1 FROM fence)"),
    ("Worker._abandon", "self._leases.abandon(lease)"),
    ("Recorder._write_batches", "self._release(batch)"),
    ("Worker._drain", "await self._release_queued()"),
]


def test_the_mutants_include(subtests: pytest.Subtests) -> None:
    for scope, before in INCLUDED:
        with subtests.test(scope=scope, before=before):
            assert any(
                (each.scope, each.before.strip()) == (scope, before) for each in all_mutants()
            )


def test_a_seed_decides_the_order_and_each_module_gets_its_share() -> None:
    mutants = all_mutants()
    first, second = in_random_order(mutants, 1), in_random_order(mutants, 1)
    assert first == second != in_random_order(mutants, 2)
    assert set(first) == set(mutants)
    half = first[: len(first) // 2]

    def in_scheduler(some: list[Mutant]) -> int:
        return sum(mutant.module == "work/claiming/scheduler.py" for mutant in some)

    assert 2 * in_scheduler(half) == pytest.approx(in_scheduler(first), abs=2)


def test_the_tests_exist() -> None:
    assert len(list(files_of_tests())) > 100


def test_the_page_has_the_last_result() -> None:
    text = document.PAGE.read_text()
    assert text == document.page(text, results.load()), "run python -m mutants --page"


def test_every_entry_of_the_result_is_a_mutant_of_this_tree() -> None:
    identities = {mutant.identity for mutant in all_mutants()}
    gone = [each for each in results.load().entries if each.identity not in identities]
    assert gone == [], "run python -m mutants --page"


def test_every_killed_mutant_names_the_test_that_killed_it() -> None:
    killed = [each for each in results.load().entries if each.outcome == Outcome.KILLED]
    assert [each.identity for each in killed if not each.test] == []


def test_every_reason_is_about_a_mutant_that_was_not_killed() -> None:
    last = results.load()
    alive = [mutant for mutant in all_mutants() if last.outcome(mutant) not in KILLED]
    assert results.load_reasons().keys() <= {(it.module, it.scope, it.change) for it in alive}


def mutant(occurrence: int) -> Mutant:
    """Return a mutant of a module that exists, which need not exist itself."""
    return Mutant(
        "src/onceward/work/worker.py",
        line=10 * occurrence,
        kind="drop raise",
        before="raise",
        after="pass",
        start=0,
        scope="Worker.run",
        occurrence=occurrence,
    )


def result(*outcomes: tuple[int, Outcome]) -> results.Result:
    """Return a result with the outcomes of mutants by occurrence."""
    trials = [Trial(mutant(number), outcome, seconds=30.0) for number, outcome in outcomes]
    return results.summarise(trials, seed=1, candidates=9)


LAST = result((1, Outcome.KILLED), (2, Outcome.SURVIVED))


def test_a_later_run_adds_mutants_and_replaces_survivors() -> None:
    both = LAST.updated(result((2, Outcome.TIMED_OUT), (3, Outcome.NOT_COVERED)))
    assert [each.outcome for each in both.entries] == ["killed", "timed out", "not covered"]
    assert (both.killed, both.minutes) == (2, 2.0)
    assert both.headline == "Mutation score: 67%. Tests killed 2 of 3 mutants."
    assert [each.occurrence for each in both.survivors] == [3]


def test_entries_of_removed_code_are_dropped() -> None:
    current = LAST.limited_to([mutant(3), mutant(2)])
    assert [each.occurrence for each in current.entries] == [2]
    assert current.candidates == 2


def test_untried_mutants_and_open_survivors_are_chosen() -> None:
    mutants = [mutant(1), mutant(2), mutant(3)]
    assert untried(mutants, LAST) == [mutant(3)]
    assert open_survivors(mutants, LAST) == [mutant(2)]
    assert in_module(mutants, "work/worker.py:20") == [mutant(2)]


def test_the_count_limits_the_mutants_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mutants.__main__.all_mutants", lambda: [mutant(n) for n in range(1, 9)])
    first = in_random_order([mutant(n) for n in range(1, 9)], 1)[0].occurrence
    monkeypatch.setattr(results, "load", lambda: result((first, Outcome.KILLED)))
    listed = CliRunner().invoke(main, ["--list", "--more", "--count", "2", "--seed", "1"])
    assert len(listed.output.splitlines()) == 2, listed.output
