-- Outside calls. COALESCE() keeps the planner from the partial indexes of the status: each effect is found
-- by its key.

-- name: withdraw_call
-- Store that an intent was not sent, if it was committed all the same.
UPDATE onceward.effects
SET status = CASE WHEN doubt THEN 'unknown' ELSE 'failed' END, updated_at = :now
WHERE idempotency_key = :key AND nonce = :nonce AND COALESCE(status, '') IN ('pending', 'unknown')
RETURNING id

-- name: record_success
-- Store that an effect was applied. It is the truth, from any call and over any status.
UPDATE onceward.effects
SET status = 'succeeded', result = :result, error_message = :error_message, updated_at = :now
WHERE id = :id AND COALESCE(status, '') <> 'succeeded'
RETURNING id

-- name: record_not_applied
-- Store that a call was not applied, if it is the last one. If an earlier call may have been applied, the
-- refusal of this one says nothing about it.
UPDATE onceward.effects
SET status = CASE WHEN doubt THEN 'unknown' ELSE 'failed' END, error_message = :error_message,
    updated_at = :now
WHERE id = :id AND call_no = :call_no AND COALESCE(status, '') IN ('pending', 'unknown')
RETURNING status

-- name: record_unknown
-- Store that the outcome of a call is unknown, if it is the last one. The deadline stays: the other side
-- may still work on it.
UPDATE onceward.effects
SET status = 'unknown', error_message = :error_message, updated_at = :now
WHERE id = :id AND call_no = :call_no AND COALESCE(status, '') = 'pending'
RETURNING id

-- name: interrupt_calls
-- Store that the outcome of a cancelled job's open calls is unknown. They keep their deadlines.
UPDATE onceward.effects SET status = 'unknown', updated_at = :now
WHERE job = :job AND COALESCE(status, '') = 'pending'
RETURNING id

-- name: resolve_effect
-- Store a person's answer. It is about all calls so far.
UPDATE onceward.effects
SET status = :status, result = :result, error_message = NULL, doubt = false, updated_at = :now
WHERE id = :id
RETURNING id
