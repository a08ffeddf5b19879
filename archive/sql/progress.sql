-- One row per run: how far it is, how its trials ended, and when something last happened.
WITH counted AS (
    SELECT run,
           count(*) FILTER (final AND outcome = 'ok') AS ok,
           count(*) FILTER (final AND outcome NOT IN ('ok', 'unsupported')) AS failed,
           count(*) FILTER (final AND outcome = 'unsupported') AS unsupported,
           count(*) FILTER (NOT final) AS retried,
           sum(elapsed_s) AS busy_s,
           max(start) AS last_attempt
    FROM (
        SELECT *, max(block_try) OVER (PARTITION BY run, block_id) AS newest_try FROM attempts WHERE phase = 'measure'
    )
    WHERE block_try = newest_try
    GROUP BY run
),
newest AS (
    SELECT run,
           max_by(name, stint) AS name,
           max_by(cluster, stint) AS cluster,
           max_by(tags, stint) AS tags,
           max_by(trials, stint) AS trials,
           max(stint) + 1 AS stints,
           min(start) AS start,
           max_by(driver_host, stint) AS driver_host,
           max_by(driver_pid, stint) AS driver_pid
    FROM runs
    GROUP BY run
),
ends AS (
    SELECT run, max_by(kind, time) AS kind, max_by("text", time) AS said
    FROM events
    WHERE kind IN ('started', 'ended', 'stopped')
    GROUP BY run
)
SELECT run, name, cluster, tags,
       CASE kind WHEN 'started' THEN 'open' ELSE kind END AS state,
       said, start, stints, driver_host, driver_pid, trials,
       coalesce(ok, 0) + coalesce(failed, 0) + coalesce(unsupported, 0) AS done,
       coalesce(ok, 0) AS ok,
       coalesce(failed, 0) AS failed,
       coalesce(unsupported, 0) AS unsupported,
       coalesce(retried, 0) AS retried,
       busy_s, last_attempt
FROM newest
LEFT JOIN counted USING (run)
LEFT JOIN ends USING (run)
