"""Writes that may run twice: rows are set, states move once, and mistakes are named."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Final, assert_type

import pytest

from onceward import Inbox, SyncTransaction, Transaction, transition, upsert
from onceward.errors import TransactionMisuse
from onceward.model.admin import JobItem
from onceward.ports import Store
from support.database import RawDatabase
from tests.factories import working
from tests.inprocess import run_inbox

TABLE = "CREATE TABLE plans (id varchar(200) PRIMARY KEY, status text, seats integer)"
WEIRD = 'a:b "c" 100%'
UNTYPED: Any = upsert
Write = Callable[[Transaction], Coroutine[Any, Any, Any]]


@pytest.fixture
def plans(store: Store, raw_db: RawDatabase) -> RawDatabase:
    raw_db.rows(TABLE)
    raw_db.rows("INSERT INTO plans VALUES ('p1', 'trial', 1), ('p2', 'ended', 2)")
    return raw_db


async def in_transaction(store: Store, write: Write) -> Any:
    """Run a write in the transaction of a handler, and commit it."""
    async with working(store) as work:
        result = await write(work.tx)
        await work.unit.commit()
        return result


def rows(raw_db: RawDatabase) -> list[Any]:
    return sorted(raw_db.rows("SELECT id, status, seats FROM plans"))


async def test_an_upsert_inserts_then_sets(store: Store, plans: RawDatabase) -> None:
    for seats in (5, 7, 7):
        key, values = {"id": "p3"}, {"status": "active", "seats": seats}
        await in_transaction(store, lambda tx: upsert(tx, "plans", key, values))  # noqa: B023
        assert rows(plans)[2] == ("p3", "active", seats)
    assert len(rows(plans)) == 3


async def test_an_upsert_leaves_other_columns_alone(store: Store, plans: RawDatabase) -> None:
    await in_transaction(store, lambda tx: upsert(tx, "plans", {"id": "p1"}, {"seats": 9}))
    await in_transaction(store, lambda tx: upsert(tx, "plans", {"id": "p2"}, {}))
    assert rows(plans) == [("p1", "trial", 9), ("p2", "ended", 2)]


@pytest.mark.parametrize("weird", [WEIRD, "x" * 63])
async def test_a_key_may_have_several_columns_of_any_name(
    store: Store, raw_db: RawDatabase, weird: str
) -> None:
    name = weird.replace('"', '""')
    raw_db.rows(
        f'CREATE TABLE "{name}" (a integer, "{name}" text, "select" text, UNIQUE (a, "{name}"))'
    )
    for value in ("'; DROP TABLE plans; --", "%s :a ?"):
        await in_transaction(
            store,
            lambda tx: upsert(tx, weird, {"a": 1, weird: "k"}, {"select": value}),  # noqa: B023
        )
        assert raw_db.rows(f'SELECT * FROM "{name}"') == [(1, "k", value)]  # noqa: S608


async def test_a_table_may_have_a_schema(store: Store, plans: RawDatabase) -> None:
    schema = "main" if plans.url.startswith("sqlite") else "public"
    await in_transaction(
        store, lambda tx: upsert(tx, f"{schema}.plans", {"id": "p1"}, {"seats": 4})
    )
    moved = await in_transaction(
        store, lambda tx: transition(tx, f"{schema}.plans", "p1", to="active", only_from="trial")
    )
    assert moved is True
    assert rows(plans)[0] == ("p1", "active", 4)


async def test_a_missing_unique_key_is_named_with_the_index_to_add(
    store: Store, plans: RawDatabase
) -> None:
    with pytest.raises(TransactionMisuse) as raised:
        await in_transaction(
            store, lambda tx: upsert(tx, "plans", {"status": "trial", "id": "p1"}, {"seats": 9})
        )
    advice = "CREATE UNIQUE INDEX plans_status_id_key ON plans (status, id)"
    assert str(raised.value).endswith(
        f"upsert: plans has no unique key on (status, id), so that it could insert a row twice; "
        f"add one: {advice}"
    )
    plans.rows(advice)

    async def write(tx: Transaction) -> None:
        await tx.fetch("SELECT * FROM plans")  # SQLite notices the new index
        await upsert(tx, "plans", {"status": "trial", "id": "p1"}, {"seats": 9})

    await in_transaction(store, write)
    assert rows(plans)[0] == ("p1", "trial", 9)


async def test_a_state_moves_only_from_where_it_may(
    store: Store, plans: RawDatabase, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[Any, bool]] = [
        ("trial", True),
        (["new", "trial"], True),
        ({"ended"}, False),
        (("trial",), True),
    ]
    for only_from, moves in cases:
        with subtests.test(repr(only_from)):
            plans.rows("UPDATE plans SET status = 'trial' WHERE id = 'p1'")
            write = functools.partial(
                transition, table="plans", id="p1", to="active", only_from=only_from
            )
            assert [await in_transaction(store, write) for _ in range(2)] == [moves, False]
            assert rows(plans)[0] == ("p1", "active" if moves else "trial", 1)


async def test_a_row_that_does_not_exist_does_not_move(store: Store, plans: RawDatabase) -> None:
    moved = await in_transaction(
        store, lambda tx: transition(tx, "plans", "p9", to="active", only_from="trial")
    )
    assert moved is False


async def test_a_transition_of_several_rows_is_refused(store: Store, plans: RawDatabase) -> None:
    plans.rows("UPDATE plans SET status = 'trial', seats = 1")
    with pytest.raises(TransactionMisuse, match="2 rows of plans have this seats; nothing is"):
        await in_transaction(
            store,
            lambda tx: transition(
                tx, "plans", 1, to="active", only_from="trial", id_column="seats"
            ),
        )
    assert {status for _, status, _ in rows(plans)} == {"trial"}


@pytest.mark.parametrize("option", ["column", "id_column"])
async def test_a_misspelt_column_is_an_error(store: Store, plans: RawDatabase, option: str) -> None:
    """SQLite takes an unknown name in double quotes for a text, and would find no row."""
    options: dict[str, Any] = {option: "statuss"}
    with pytest.raises(Exception, match="statuss"):
        await in_transaction(
            store,
            lambda tx: transition(tx, "plans", "p1", to="active", only_from="trial", **options),
        )


MISTAKES: Final[tuple[tuple[Write, str], ...]] = (
    (lambda tx: upsert(tx, "plans", {}, {"seats": 1}), "upsert: key has no column"),
    (lambda tx: UNTYPED(tx, "plans", "id", {}), "key is a str; pass a dict"),
    (lambda tx: UNTYPED(tx, "plans", {"id": 1}, [1]), "values is a list; pass a dict"),
    (
        lambda tx: upsert(tx, "plans", {"id": 1}, {"id": 2}),
        "key and values both have the column id",
    ),
    (lambda tx: upsert(tx, "plans", {"id": None}, {}), "the key's column id is None"),
    (lambda tx: UNTYPED(tx, "plans", {1: 1}, {}), "a column in key is an int"),
    (lambda tx: upsert(tx, "plans", {"": 1}, {}), "a column in key has an empty name"),
    (lambda tx: upsert(tx, "plans", {"i\0": 1}, {}), "a column in key has a NUL"),
    (
        lambda tx: upsert(tx, "plans", {"id": 1}, dict.fromkeys(map(str, range(1_601)))),
        "values has 1601 columns; the limit is 1600",
    ),
    (lambda tx: upsert(tx, "a.b.c", {"id": 1}, {}), "more than one dot"),
    (lambda tx: upsert(tx, ".plans", {"id": 1}, {}), "the table has an empty name"),
    (lambda tx: upsert(tx, "é" * 32, {"id": 1}, {}), "a name of 64 bytes; the limit is 63"),
    (lambda tx: UNTYPED(tx, 7, {"id": 1}, {}), "the table is an int"),
    (lambda tx: transition(tx, "plans", 1, to="a", only_from=[]), "only_from is empty"),
    (lambda tx: transition(tx, "plans", 1, to="a", only_from=None), "only_from contains None"),
    (lambda tx: transition(tx, "plans", 1, to="a", only_from="a"), "to is also in only_from"),
    (lambda tx: transition(tx, "plans", 1, to=b"a", only_from=b"a"), "to is also in only_from"),
    (lambda tx: transition(tx, "plans", None, to="a", only_from="b"), "id is None"),
    (
        lambda tx: transition(tx, "plans", {"id": 1}, to="a", only_from="b"),
        "id is a dict; pass the value of the row's id",
    ),
    (lambda tx: transition(tx, "plans", 1, to=None, only_from="b"), "to is None; pass one"),
    (lambda tx: transition(tx, "plans", 1, to=["a"], only_from="b"), "to is a list; pass one"),
    (lambda tx: upsert(tx, "plans", {"id": "p1"}, {"status": {}}), ":status is a dict"),
    (
        lambda tx: transition(tx, "plans", 1, to="a", only_from="b", column="\ud800"),
        "column has a name that is not valid Unicode",
    ),
)


async def test_mistakes_are_named(
    store: Store, plans: RawDatabase, subtests: pytest.Subtests
) -> None:
    for write, fault in MISTAKES:
        with subtests.test(fault):
            with pytest.raises(TransactionMisuse) as raised:
                await in_transaction(store, write)
            assert fault in str(raised.value)


def test_other_objects_are_no_transaction() -> None:
    with pytest.raises(TransactionMisuse, match="upsert: the first argument is a str; pass the"):
        UNTYPED("tx", "plans", {"id": 1}, {})


async def run(database_url: str, *handlers: Callable[..., Any]) -> list[JobItem]:
    inbox = Inbox()
    for handler in handlers:
        inbox.on("plan.changed")(handler)
    async with run_inbox(inbox, database_url) as bench:
        RawDatabase(database_url).rows(TABLE)
        await bench.post("plan.changed")
        await bench.wait_until_idle()
        return list((await bench.jobs()).values())


async def test_sync_handlers_get_plain_values(database_url: str) -> None:
    moves: list[bool] = []

    def change(tx: SyncTransaction) -> None:
        upsert(tx, "plans", {"id": "p1"}, {"status": "trial"})
        for _ in range(2):
            moved = transition(tx, "plans", "p1", to="active", only_from="trial")
            assert_type(moved, bool)
            moves.append(moved)

    (job,) = await run(database_url, change)
    assert job.status == "done", job.last_error
    assert moves == [True, False]
    assert rows(RawDatabase(database_url)) == [("p1", "active", None)]


async def test_a_forgotten_await_is_named(database_url: str) -> None:
    async def change(tx: Transaction) -> None:
        upsert(tx, "plans", {"id": "p1"}, {})  # type: ignore[unused-coroutine]

    (job,) = await run(database_url, change)
    assert (job.status, job.failure_type) == ("failed", "permanent")
    assert "upsert" in str(job.last_error)
    assert "await" in str(job.last_error)
    assert "test_repeatable_writes.py" in str(job.last_error)


async def test_a_mistake_names_the_line_of_the_handler(database_url: str) -> None:
    async def change(tx: Transaction) -> None:
        await transition(tx, "plans", "p1", to="a", only_from=[])

    (job,) = await run(database_url, change)
    assert job.failure_type == "permanent"
    assert "test_repeatable_writes.py" in str(job.last_error)
    assert "in test_a_mistake_names" not in str(job.last_error)
    assert "only_from is empty" in str(job.last_error)
