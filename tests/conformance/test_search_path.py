"""PostgreSQL alone: functions and operators of other roles never run as ours."""

import pytest

from onceward.model.events import DuplicateBody
from onceward.model.inline import InlineRun
from onceward.model.jobs import Ignore
from onceward.model.versions import Watermark
from onceward.operate.maintenance import SETTING_OF
from onceward.ports import StoreTransaction
from onceward.work.running.staleness import VersionedJob
from support.database import RawDatabase
from tests.factories import (
    ACT,
    BROKEN,
    EVERYTHING,
    arrival,
    arrivals,
    checked,
    inline_failure,
    lease,
    opened,
    processing,
    record,
    working,
)
from tests.maintaining import make_maintenance

# Each does what the built-in one does, and notes that it ran. They match the arguments of our
# statements as well as the built-in ones, or better where those are polymorphic.
FUNCTIONS = {
    "unnest(integer[])": ("SETOF integer", "RETURN QUERY SELECT pg_catalog.unnest($1)"),
    "unnest(bigint[])": ("SETOF bigint", "RETURN QUERY SELECT pg_catalog.unnest($1)"),
    "unnest(boolean[])": ("SETOF boolean", "RETURN QUERY SELECT pg_catalog.unnest($1)"),
    "array_remove(bigint[], bigint)": ("bigint[]", "RETURN pg_catalog.array_remove($1, $2)"),
    "width_bucket(bigint, bigint[])": ("integer", "RETURN pg_catalog.width_bucket($1, $2)"),
    "clock_timestamp()": ("timestamptz", "RETURN pg_catalog.clock_timestamp()"),
    "now()": ("timestamptz", "RETURN pg_catalog.now()"),
    "texteq(text, text)": ("boolean", "RETURN pg_catalog.texteq($1, $2)"),
    "contains(bigint[], bigint[])": ("boolean", "RETURN $1 OPERATOR(pg_catalog.@>) $2"),
    "same(bigint, bigint)": ("boolean", "RETURN $1 OPERATOR(pg_catalog.=) $2"),
    "same(text, text)": ("boolean", "RETURN $1 OPERATOR(pg_catalog.=) $2"),
    "same(timestamptz, timestamptz)": ("boolean", "RETURN $1 OPERATOR(pg_catalog.=) $2"),
    "plus(integer, integer)": ("integer", "RETURN $1 OPERATOR(pg_catalog.+) $2"),
    "set_config(text, text, boolean)": ("text", "RETURN pg_catalog.set_config($1, $2, $3)"),
    "current_setting(text)": ("text", "RETURN pg_catalog.current_setting($1)"),
    "pg_backend_pid()": ("integer", "RETURN pg_catalog.pg_backend_pid()"),
    "pg_advisory_xact_lock(integer, integer)": (
        "void",
        "PERFORM pg_catalog.pg_advisory_xact_lock($1, $2)",
    ),
    "pg_advisory_unlock_all()": ("void", "PERFORM pg_catalog.pg_advisory_unlock_all()"),
}
FLAG = DuplicateBody.FLAGGED
OPERATORS = {
    "@> (LEFTARG = bigint[], RIGHTARG = bigint[], FUNCTION = public.contains)",
    "= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.same)",
    "= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.same)",
    "= (LEFTARG = timestamptz, RIGHTARG = timestamptz, FUNCTION = public.same)",
    "+ (LEFTARG = integer, RIGHTARG = integer, FUNCTION = public.plus)",
}


@pytest.fixture(params=['"$user", public', "public, pg_catalog"])
def hostile_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """Return the URL of a database where others replaced the functions, operators and types."""
    raw_db = RawDatabase(postgres_url)
    raw_db.rows("CREATE TABLE public.called (name text)")
    for signature, (result, body) in FUNCTIONS.items():
        note = f"INSERT INTO public.called VALUES ('{signature}')"  # noqa: S608 - constants
        raw_db.rows(
            f"CREATE FUNCTION public.{signature} RETURNS {result} LANGUAGE plpgsql AS "
            f"$$ BEGIN {note}; {body}; END $$"
        )
    for kind in ("text", "bytea", "int8", "timestamptz"):
        raw_db.rows(f"CREATE DOMAIN public.{kind} AS pg_catalog.{kind} CHECK (false)")
    for operator in OPERATORS:
        raw_db.rows(f"CREATE OPERATOR public.{operator}")
    name = postgres_url.rpartition("/")[2]
    raw_db.rows(f"ALTER DATABASE {name} SET search_path = {request.param}")
    return postgres_url


async def advance_twice(transaction: StoreTransaction) -> None:
    """Write a first version, then a newer one."""
    for version in ("1", "2"):
        new = Watermark(version, "evt_1", "stripe")
        versioned = VersionedJob("credit", "created", "key", new, even_if_stale=False)
        await versioned.advance_watermark(transaction)


async def test_no_function_of_another_role_runs_as_ours(hostile_url: str) -> None:
    async with opened(hostile_url) as store:
        await record(store, *arrivals(4))
        await record(store, *arrivals(4), arrival("evt_0", body=b"other"))
        await record(store, *(checked(name, FLAG, type="x") for name in ("a", "b")))
        leased = await lease(store)
        done, effect, failed, stale = leased.jobs
        async with store.prepare() as transaction:
            await transaction.commit()
        inline, run = arrival("inline"), InlineRun(0, "credit", -1)
        async with processing(store, inline) as handlers:
            assert await handlers.mark_effect(run.job, "inline", None)
            await handlers.settle_inline([inline], [run])
            await handlers.commit()
        await store.fail_inline([arrival("failed")], [inline_failure(run)], "worker-1")
        async with working(store) as work:
            assert await work.unit.mark_effect(effect.id, "key", None)
            assert await work.unit.settle(leased.token, effect.id, advance_twice)
        assert await store.settle_done(leased.token, done.id)
        assert await store.settle_error(leased.token, failed.id, BROKEN, 0.1)
        assert await store.settle_error(leased.token, stale.id, Ignore("stale"), 0.1)
        assert await store.watermark("credit", "key") is not None
        await store.requeue(failed.id, ACT)
        for page in (store.events, store.jobs, store.effects, store.deliveries, store.audit):
            assert await page(EVERYTHING)
        await store.renew([leased.token], 60.0)
        await store.release(leased.token, [failed.id])
        await store.end_leases([leased.token])
        every = dict.fromkeys([*SETTING_OF.values(), "payload_days", "audit_days"], 1)
        RawDatabase(hostile_url).rows("UPDATE onceward.payloads SET received_at = '2026-01-01'")
        assert not await make_maintenance(store, **every).run()
    assert RawDatabase(hostile_url).rows("SELECT DISTINCT name FROM public.called") == []


def test_an_owner_who_makes_partitions_runs_no_function_of_another_role(hostile_url: str) -> None:
    raw_db = RawDatabase(hostile_url)
    raw_db.rows("SELECT onceward.make_payload_partitions(6)")
    assert raw_db.rows("SELECT DISTINCT name FROM public.called") == []


async def test_a_handler_can_use_the_functions_of_its_path(hostile_url: str) -> None:
    async with opened(hostile_url) as store, working(store) as work:
        assert await work.tx.fetch_value("SELECT count(*) FROM unnest(ARRAY[1, 2])") == 2
        await work.unit.commit()
    assert RawDatabase(hostile_url).rows("SELECT DISTINCT name FROM public.called") == [
        ("unnest(integer[])",)
    ]
