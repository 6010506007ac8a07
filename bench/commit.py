"""A bare INSERT and COMMIT, again and again: what one durable write costs on this machine.

In a process of its own: python -m bench.commit DATABASE SECONDS prints p50 and p99, as JSON.
"""

import json
import sys
import time

import psycopg

from bench.deliveries import BODY_BYTES, random_ids
from bench.generator import percentiles_ms

TABLE = 'CREATE TABLE bare (id text COLLATE "C" PRIMARY KEY, body bytea NOT NULL)'
INSERT = "INSERT INTO bare (id, body) VALUES (%s, %s)"
MOST_A_SECOND = 20_000


def make_table(database: str) -> None:
    """One table, one index."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)


def measure(database: str, seconds: float) -> dict[str, float]:
    """One row after the other, each in a transaction of its own."""
    ids = random_ids(int(MOST_A_SECOND * seconds), seed=time.time_ns())
    body = bytes(BODY_BYTES)
    took = []
    with psycopg.connect(database) as connection:
        ends = time.perf_counter() + seconds
        for event_id in ids:
            began = time.perf_counter()
            connection.execute(INSERT, (event_id, body))
            connection.commit()
            took.append(time.perf_counter() - began)
            if began > ends:
                break
    p50, p99, _ = percentiles_ms(took)
    return {"p50_ms": p50, "p99_ms": p99}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], float(sys.argv[2]))))
