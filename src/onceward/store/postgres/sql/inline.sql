-- name: fail_inline
-- Count a failed attempt within the request, and store its reason; only the newest are kept. A job of
-- an event that this transaction recorded becomes failed. The status of any other job stays as it is.
WITH
counted AS (
    UPDATE onceward.jobs
    SET
        -- if new
        status = 'failed', failure_type = 'inline',
        -- end
        attempts = attempts + 1, last_error = :error, finished_at = clock_timestamp()
    WHERE id = :job
    -- if new
    AND status IS NOT DISTINCT FROM 'queued'
    -- end
    -- if failed
    AND status IS NOT DISTINCT FROM 'failed' AND failure_type IS NOT DISTINCT FROM 'inline'
    -- end
    RETURNING id, attempts
),
trimmed AS (
    DELETE FROM onceward.attempts a USING counted c
    WHERE a.job = c.id AND a.number <= c.attempts - :kept
)
INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    id, attempts, :worker, clock_timestamp() - :elapsed_seconds * interval '1 second',
    clock_timestamp(), :error, :traceback
FROM counted
RETURNING number
