"""The sources of a process accept the provisioned secrets that the store has, and no others."""

import pytest

from onceward.errors import LedgerUnavailable, UnusableSecret
from onceward.ports import Store
from onceward.receive.live_sources import MAX_PROVISIONED_SECRETS, LiveSources
from onceward.sources.configure import make_source
from support.database import RawDatabase
from tests.factories import HANDLERS


@pytest.fixture
async def sources(store: Store) -> LiveSources:
    await store.register(["asana"], HANDLERS, [])
    return LiveSources({"asana": make_source("asana", verify_token="a-long-verify-token")}, store)


def accepted(sources: LiveSources) -> tuple[bytes, ...]:
    return sources.by_name["asana"].secrets


async def test_a_deleted_secret_is_no_longer_accepted(store: Store, sources: LiveSources) -> None:
    await sources.store_secret("asana", b"provisioned-1")
    await sources.refresh()
    assert accepted(sources) == (b"provisioned-1",)
    assert await store.delete_secrets("asana") == 1
    await sources.refresh()
    assert accepted(sources) == ()
    assert sources.secrets == [b"provisioned-1"], "it is still redacted"


PROVISIONED = [b"provisioned-%d" % number for number in range(MAX_PROVISIONED_SECRETS)]


async def test_a_secret_beyond_the_limit_is_refused_and_pushes_out_none(
    store: Store, sources: LiveSources
) -> None:
    for secret in [*PROVISIONED, PROVISIONED[0]]:
        await sources.store_secret("asana", secret)
    with pytest.raises(UnusableSecret, match="too many secrets"):
        await sources.store_secret("asana", b"one-too-many")
    assert set(accepted(sources)) == set(PROVISIONED)
    await store.store_secret("asana", b"stored-by-another-process")
    await sources.refresh()
    assert set(accepted(sources)) == set(PROVISIONED)


async def test_configured_secrets_do_not_count_towards_the_limit(store: Store) -> None:
    await store.register(["asana"], HANDLERS, [])
    configured = make_source(
        "asana", verify_token="a-long-verify-token", secrets=["a-configured-secret"]
    )
    sources = LiveSources({"asana": configured}, store)
    for secret in PROVISIONED:
        await sources.store_secret("asana", secret)
    assert set(accepted(sources)) == {b"a-configured-secret", *PROVISIONED}


async def test_a_secret_that_cannot_be_stored_is_not_accepted(
    raw_db: RawDatabase, sources: LiveSources
) -> None:
    raw_db.rows("DROP TABLE onceward.provisioned_secrets")
    with pytest.raises(LedgerUnavailable):
        await sources.store_secret("asana", b"provisioned-1")
    assert accepted(sources) == ()
