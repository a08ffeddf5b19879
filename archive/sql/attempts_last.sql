-- The last attempt of each trial: what became of it in the end.
-- One row per run and trial, with all columns of `attempts`.
SELECT *
FROM attempts
QUALIFY row_number() OVER (PARTITION BY run, trial_id ORDER BY attempt DESC) = 1
