"""The SQLite file itself: its names, its permissions, and what happens when it is taken away."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceward.errors import ConfigurationError, LedgerReplaced, OutcomeUnknown
from onceward.ports import Store
from onceward.store.sqlite.lock_watch import LockWatch
from tests.factories import arrival, arrivals, claim, make_store, opened, record, working

ROOT = Path(__file__).parents[2]
BESIDE = ("", "-wal", "-shm", ".lock")
EVENT_IDS = "SELECT event_id FROM onceward_events"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "onceward.db"


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def beside(file: Path, suffix: str) -> Path:
    return file.with_name(file.name + suffix)


def unlink(suffix: str) -> Callable[[Path], None]:
    return lambda file: beside(file, suffix).unlink()


def replace(suffix: str) -> Callable[[Path], None]:
    """Return a function that renames a copy over one of the files."""

    def rename_over(file: Path) -> None:
        target = beside(file, suffix)
        shutil.copy(target, beside(file, ".copy"))
        beside(file, ".copy").rename(target)

    return rename_over


def move_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))


def put_a_file_in_place_of_the_folder(file: Path) -> None:
    move_folder(file)
    file.parent.touch()


def move_and_link(file: Path) -> None:
    """Move the file, without its WAL, and leave a symbolic link to it."""
    target = file.with_name("moved.db")
    file.rename(target)
    file.symlink_to(target)


def event_ids(file: Path) -> str:
    """Read the events in another process: this one may have the file open under another name."""
    script = f"import sqlite3; print(sqlite3.connect('{file}').execute('{EVENT_IDS}').fetchall())"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


LOSSES = {
    **{f"unlink {suffix or 'db'}": unlink(suffix) for suffix in BESIDE},
    **{f"replace {suffix or 'db'}": replace(suffix) for suffix in BESIDE},
    "move folder": move_folder,
    "replace folder": put_a_file_in_place_of_the_folder,
    "move and link": move_and_link,
}


async def test_nothing_is_acknowledged_after_a_file_is_taken_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests
) -> None:
    for name, loss in LOSSES.items():
        with subtests.test(name):
            caplog.clear()
            file = tmp_path / name / "data" / "onceward.db"
            file.parent.mkdir(parents=True)
            await lose(file, loss)
            errors = [entry for entry in caplog.records if entry.levelname == "ERROR"]
            assert len(errors) == 1
            assert "nothing can be saved" in errors[0].message


async def lose(file: Path, loss: Callable[[Path], None]) -> None:
    """Take a file away from an open store, and check that it acknowledges nothing more."""
    async with opened(url_of(file)) as store:
        await record(store, arrival("before"))
        await store.ready()
        loss(file)
        for call in (record(store, arrival("after")), store.ready(), claim(store)):
            with pytest.raises(LedgerReplaced, match="Stop the inbox before you move or restore"):
                await call
        with pytest.raises(LedgerReplaced):
            async with working(store) as work:
                await work.tx.execute("SELECT 1")
        with pytest.raises(LedgerReplaced):
            await asyncio.wait_for(store.wait_until_lost(), 5)


async def test_a_link_to_a_file_that_was_moved_without_its_wal_is_refused(file: Path) -> None:
    async with opened(url_of(file)) as store:
        await record(store, arrival("acknowledged"))
        move_and_link(file)
        with pytest.raises(LedgerReplaced):
            await record(store, arrival("refused"))
    moved, stray = file.with_name("moved.db"), beside(file, "-wal")
    with pytest.raises(ConfigurationError, match=f"Move it to {moved}-wal before you start"):
        await make_store(url_of(file)).open(serving=True)
    stray.rename(beside(moved, "-wal"))
    assert event_ids(file) == "[('acknowledged',)]\n"


async def test_a_folder_behind_a_link_is_no_stray_wal(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file.parent)
    async with opened(url_of(link / file.name)) as store:
        await record(store, arrival())
        other = make_store(url_of(link / file.name))
        await other.open(serving=False)
        await other.close()


async def test_a_commit_that_cannot_be_checked_has_an_unknown_outcome(file: Path) -> None:
    moved = file.parent.with_name("moved")
    async with opened(url_of(file)) as store:
        file.parent.rename(moved)
        file.parent.symlink_to(file.parent)
        with pytest.raises(OutcomeUnknown, match="cannot be checked: Too many levels"):
            await record(store, arrival())
        file.parent.unlink()
        moved.rename(file.parent)
        await record(store, arrival())


async def record_one(store: Store) -> None:
    await record(store, arrival())


async def commit_as_a_handler(store: Store) -> None:
    async with working(store) as work:
        await work.tx.execute("SELECT 1")
        await work.unit.commit()


@pytest.mark.parametrize("commit", [record_one, commit_as_a_handler])
async def test_a_commit_into_a_file_deleted_meanwhile_fails(
    file: Path, commit: Callable[[Store], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LockWatch.begin

    def begin_and_delete(watch: LockWatch, connection: sqlite3.Connection) -> None:
        begin(watch, connection)
        file.unlink(missing_ok=True)

    async with opened(url_of(file)) as store:
        monkeypatch.setattr(LockWatch, "begin", begin_and_delete)
        with pytest.raises(LedgerReplaced):
            await commit(store)


async def test_a_file_that_nobody_touches_stays_usable(file: Path) -> None:
    async with opened(url_of(file)) as store:
        await store.record(arrivals(1_000))
        with sqlite3.connect(file) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            other.execute("VACUUM")
        other.close()
        await record(store, arrival("after"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.wait_until_lost(), 0.05)


async def test_closing_leaves_the_files_of_a_new_database_alone(file: Path) -> None:
    lost = make_store(url_of(file))
    await lost.open(serving=True)
    await lost.register(["stripe"], [], [])
    file.parent.rename(file.parent.with_name("moved"))
    file.parent.mkdir()
    async with opened(url_of(file)) as store:
        await record(store, arrival("new"))
        with pytest.raises(LedgerReplaced):
            await record(lost, arrival("lost"))
        await lost.close()
        assert all(beside(file, suffix).exists() for suffix in BESIDE)
        await record(store, arrival("newer"))


async def test_closing_leaves_the_wal_of_another_database_alone(file: Path) -> None:
    """SQLite deletes the WAL by its name when the last connection is closed."""
    async with opened(url_of(file)) as store:
        await record(store, arrival("before"))
        replace("-wal")(file)
        with pytest.raises(LedgerReplaced):
            await record(store, arrival("lost"))
    assert beside(file, "-wal").exists()


async def test_a_link_that_leads_to_another_file_is_noticed(file: Path) -> None:
    link = file.with_name("link.db")
    link.symlink_to(file)
    async with opened(url_of(link)) as store:
        await record(store, arrival("before"))
        link.unlink()
        link.symlink_to(file.with_name("other.db"))
        with pytest.raises(LedgerReplaced, match=r"link\.db"):
            await record(store, arrival("after"))


async def test_the_lock_goes_by_the_file_and_not_by_its_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = file.parent.with_name("link.db")
    link.symlink_to(file)
    folder_link = file.parent.with_name("folder")
    folder_link.symlink_to(file.parent)
    monkeypatch.chdir(file.parent)
    async with opened(url_of(file)):
        descriptor = os.open(file, os.O_PATH)  # closing any other would drop SQLite's locks
        names = (
            link,
            folder_link / file.name,
            Path(file.name),
            Path(f"/proc/self/fd/{descriptor}"),
        )
        for name in names:
            with pytest.raises(ConfigurationError, match="one serving process"):
                await make_store(url_of(name)).open(serving=True)
        os.close(descriptor)


async def test_a_relative_path_survives_a_change_of_the_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    async with opened("sqlite:///onceward.db") as store:
        monkeypatch.chdir(tmp_path)
        await record(store, arrival())
        await store.ready()
    assert [path.name for path in file.parent.iterdir()] == ["onceward.db"]


@pytest.mark.parametrize("serving", [True, False])
async def test_a_file_with_two_names_is_refused(file: Path, *, serving: bool) -> None:
    async with opened(url_of(file)):
        pass
    other = file.with_name("other.db")
    other.hardlink_to(file)
    with pytest.raises(ConfigurationError, match=r"other\.db has 2 names \(hard links\)"):
        await make_store(url_of(other)).open(serving=serving)
    with pytest.raises(ConfigurationError, match="hard links"):
        await make_store(url_of(other)).migrate()
    assert not beside(other, "-wal").exists()


def create_and_delete(file: Path) -> int:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    file.unlink()
    return descriptor


async def test_a_deleted_file_is_refused(file: Path) -> None:
    descriptor = create_and_delete(file)
    with pytest.raises(ConfigurationError, match="leads to a deleted file"):
        await make_store(f"sqlite:////proc/self/fd/{descriptor}").open(serving=True)
    os.close(descriptor)


OPEN = """
import asyncio, sys
from tests.factories import make_store
asyncio.run(make_store(sys.argv[1]).open(serving=True))
"""


def test_a_file_that_is_mounted_alone_is_refused(file: Path, tmp_path: Path) -> None:
    """SQLite would keep new events outside the mount, where a container forgets them."""
    file.touch()
    mounted = tmp_path / "a folder" / "mounted.db"
    mounted.parent.mkdir()
    mounted.touch()
    script = 'mount --bind "$1" "$2" || exit 99; exec "$3" -c "$4" "sqlite:///$2"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(file), str(mounted)]
    done = subprocess.run(
        [*command, sys.executable, OPEN], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 99 or "unshare" in done.stderr:
        pytest.skip("mounting is not permitted here")
    assert "mounted.db is mounted as a single file" in done.stderr
    assert "Mount the folder instead" in done.stderr


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
async def test_only_the_owner_can_open_the_files(
    file: Path, mask: int, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.chmod(0o777)
    with umask(mask):
        async with opened(url_of(file)) as store:
            await record(store, arrival())
            modes = {suffix: beside(file, suffix).stat().st_mode & 0o777 for suffix in BESIDE}
    assert modes == dict.fromkeys(BESIDE, 0o600)
    assert "other users" not in caplog.text


async def test_a_file_that_others_can_read_is_a_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with umask(0o022):
        os.close(os.open(file, os.O_CREAT, 0o644))
    async with opened(url_of(file)):
        pass
    (warning,) = [text for text in caplog.messages if "other users" in text]
    assert f"{file} can be opened by other users (mode 0644)" in warning
    assert f"chmod 600 {file}" in warning


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_a_file_beside_it_that_others_can_read_is_a_warning(
    file: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(url_of(file)):
        pass
    with sqlite3.connect(file) as other:  # a crash leaves both files behind
        other.execute("SELECT count(*) FROM onceward_events").fetchall()
        beside(file, suffix).chmod(0o644)
        async with opened(url_of(file)):
            pass
    other.close()
    (warning,) = [text for text in caplog.messages if "other users" in text]
    assert f"chmod 600 {file}{suffix}" in warning


async def test_a_link_in_place_of_the_lock_is_not_followed(file: Path, tmp_path: Path) -> None:
    """Another user of a shared folder could otherwise choose the file that is locked."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    beside(file, ".lock").symlink_to(victim)
    with pytest.raises(ConfigurationError, match=r"onceward\.db\.lock cannot be written"):
        await make_store(url_of(file)).open(serving=True)
    assert victim.read_text() == "precious"
