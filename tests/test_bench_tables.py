"""Tables of the benchmarks of the queue, from results that no run has to produce."""

from bench.registry import NEIGHBOURS_LOOP
from bench.results import Results, Sample
from bench.suite import fairness, recovery
from bench.tables import make_tables


def test_a_wait_that_reaches_its_limit_is_shown_as_longer() -> None:
    killed, waited = Results("recovery", "postgres"), Results("fairness", "postgres")
    over = {"done": 0.0, "last_s": recovery.LIMIT_SECONDS}
    killed.samples = [Sample("dbos", recovery.CASE, 0, over)]
    limit_ms = fairness.LIMIT_SECONDS * 1_000
    values = {"rate": 0.0, "p50_ms": 12.0, "p99_ms": limit_ms}
    waited.samples = [Sample(NEIGHBOURS_LOOP, fairness.ALONE, 0, values)]

    ((recovered,), (fair,)) = (make_tables(found)[0].rows for found in (killed, waited))

    assert recovered[2:] == ["over 60", "0"]
    assert fair[2:] == ["0", "12.0", "over 15,000"]
