"""The cost of one durable write: an INSERT and a COMMIT by the same driver, nothing else.

`python -m bench.bare_commit DATABASE SECONDS` prints p50 and p99 as JSON.
"""

import json
import sys
import time

import psycopg

from bench.deliveries import BODY_BYTES, random_ids
from bench.load_generator import percentiles_ms

TABLE = 'CREATE TABLE bare (id text COLLATE "C" PRIMARY KEY, body bytea NOT NULL)'
INSERT = "INSERT INTO bare (id, body) VALUES (%s, %s)"
MAX_PER_SECOND = 20_000


def create_table(database: str) -> None:
    """Create a table with one index."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)


def measure(database: str, seconds: float) -> dict[str, float]:
    """Commit one row after the other and return the percentiles."""
    ids = random_ids(int(MAX_PER_SECOND * seconds), seed=time.time_ns())
    body = bytes(BODY_BYTES)
    durations = []
    with psycopg.connect(database) as connection:
        deadline = time.perf_counter() + seconds
        for event_id in ids:
            began = time.perf_counter()
            connection.execute(INSERT, (event_id, body))
            connection.commit()
            durations.append(time.perf_counter() - began)
            if began > deadline:
                break
    p50, p99, _ = percentiles_ms(durations)
    return {"p50_ms": p50, "p99_ms": p99}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
