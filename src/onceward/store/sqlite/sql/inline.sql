-- name: fail_inline
-- Count a failed attempt within the request, and store its reason; only the newest are kept. A job of
-- an event that this transaction recorded becomes failed. The status of any other job stays as it is.
DELETE FROM onceward_attempts
WHERE job = :job AND number <= (
    SELECT attempts + 1 FROM onceward_jobs WHERE id = :job AND failure_type = 'inline'
) - :kept;
UPDATE onceward_jobs
SET
    -- if new
    status = 'failed', failure_type = 'inline',
    -- end
    attempts = attempts + 1, last_error = :error, finished_at = :now
WHERE id = :job
-- if new
AND status = 'queued'
-- end
-- if failed
AND status = 'failed' AND failure_type = 'inline'
-- end
;
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    id, attempts, :worker, :now - CAST(:elapsed_seconds * 1000000 AS INTEGER), :now, :error,
    :traceback
FROM onceward_jobs
WHERE changes() = 1 AND id = :job
RETURNING number
