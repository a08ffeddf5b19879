-- Everything that was measured, with the column `hidden` saying why a row is not in `results` (null: it is there).
-- algbw and busbw are what the tool's parser stored, else payload_bytes / time and that times the operation's bus
-- factor for n = nodes * ranks_per_node ranks (nccl-tests doc/PERFORMANCE.md); null for other operations.
-- Exclusions are events of kind `exclude` in the row's own run; the newest event of a subject decides, so `reinstate`
-- undoes one. Their subject is, by scope: run (none needed), attempt (its id), node (its name), period
-- ("start/end", ISO 8601, compared with the attempt's start).
WITH newest AS (
    SELECT run, scope, subject, max_by(kind, time) AS kind, max_by(coalesce(text, ''), time) AS text
    FROM events
    WHERE kind IN ('exclude', 'reinstate')
    GROUP BY run, scope, subject
),

excluded AS (
    SELECT run, list({'scope': scope, 'subject': subject, 'text': text}) AS exclusions
    FROM newest
    WHERE kind = 'exclude'
    GROUP BY run
),

stints AS (
    SELECT
        run,
        stint,
        any_value(cluster) AS cluster,
        any_value(name) AS name,
        any_value(campaign) AS campaign,
        any_value(tags) AS tags
    FROM runs
    GROUP BY run, stint
),

wide AS (
    SELECT
        run,
        attempt_id,
        phase,
        start,
        benchmark,
        operation,
        nodes,
        ranks_per_node,
        nics,
        sharp,
        placement,
        stack,
        message_size,
        variant,
        any_value(point_id) AS point_id,
        any_value(payload_bytes) AS payload_bytes,
        any_value(value) FILTER (metric = 'time') AS time,
        any_value(value) FILTER (metric = 'time_min') AS time_min,
        any_value(value) FILTER (metric = 'time_max') AS time_max,
        any_value(value) FILTER (metric = 'bandwidth') AS bandwidth,
        any_value(value) FILTER (metric = 'algbw') AS algbw,
        any_value(value) FILTER (metric = 'busbw') AS busbw,
        any_value(value) FILTER (metric = 'message_rate') AS message_rate,
        list(metric) AS metric_names,
        list(value) AS metric_values,
        any_value(samples) AS samples,
        any_value(algorithm) AS algorithm,
        any_value(protocol) AS protocol,
        any_value(sharp_observed) AS sharp_observed,
        any_value(nics_observed) AS nics_observed,
        any_value(evidence) AS evidence,
        bool_or(partial) AS partial
    FROM measurements
    GROUP BY
        run,
        attempt_id,
        phase,
        start,
        benchmark,
        operation,
        nodes,
        ranks_per_node,
        nics,
        sharp,
        placement,
        stack,
        message_size,
        variant
),

derived AS (
    SELECT
        *,
        -- a map refuses the same key twice, so a metric that a tool printed twice takes the slow way: the last counts
        coalesce(
            try(map(metric_names, metric_values)),
            list_reduce(
                list_transform(list_zip(metric_names, metric_values), lambda pair: MAP {pair[1]: pair[2]}),
                lambda one, other: map_concat(one, other)
            )
        ) AS metrics,
        coalesce(algbw, payload_bytes / nullif(time, 0) / 1e3) AS algbw_derived,
        coalesce(nodes, 1) * coalesce(ranks_per_node, 1) AS ranks,
        CASE
            WHEN regexp_full_match(operation, '(?i)all_?reduce') THEN 2.0 * (ranks - 1) / ranks
            WHEN regexp_full_match(
                operation, '(?i)(all_?gather|reduce_?scatter(_?block)?|all_?to_?all|gather|scatter)v?'
            ) THEN 1.0 * (ranks - 1) / ranks
            WHEN regexp_full_match(operation, '(?i)broadcast|bcast|reduce|send_?recv|hypercube') THEN 1.0
        END AS bus_factor
    FROM wide
)

SELECT
    m.start,
    r.cluster,
    m.run,
    r.name,
    r.campaign,
    r.tags,
    m.benchmark,
    m.operation,
    m.nodes,
    m.ranks_per_node,
    m.nics,
    m.sharp,
    m.placement,
    m.stack,
    a.factors,
    m.message_size,
    m.payload_bytes,
    m.variant,
    m.time,
    m.time_min,
    m.time_max,
    m.bandwidth,
    m.algbw_derived AS algbw,
    coalesce(m.busbw, m.algbw_derived * m.bus_factor) AS busbw,
    m.message_rate,
    m.metrics,
    m.samples,
    m.algorithm,
    m.protocol,
    m.sharp_observed,
    m.nics_observed,
    m.evidence,
    a.contaminated,
    a.outcome,
    a.repeat,
    a.slot,
    a.attempt,
    a.node_names,
    a.block_id,
    a.block_try,
    a.position,
    m.point_id,
    a.setup_id,
    a.trial_id,
    m.attempt_id,
    m.phase,
    m.partial,
    coalesce(
        'excluded: ' || list_filter(e.exclusions, lambda said: CASE said.scope
            WHEN 'run' THEN coalesce(said.subject, m.run) = m.run
            WHEN 'attempt' THEN said.subject = m.attempt_id::VARCHAR
            WHEN 'node' THEN list_contains(a.node_names, said.subject)
            WHEN 'period' THEN m.start BETWEEN try_cast(split_part(said.subject, '/', 1) AS TIMESTAMPTZ)
                AND try_cast(split_part(said.subject, '/', 2) AS TIMESTAMPTZ)
        END)[1].text,
        CASE
            WHEN m.phase <> 'measure' THEN 'phase ' || m.phase
            WHEN m.sharp IN ('on', 'off') AND (m.sharp = 'on') <> m.sharp_observed
                THEN 'sharp ' || m.sharp || ' was asked, the opposite observed'
            -- small messages may well use fewer NICs than they could; no message of the whole launch must not
            WHEN m.nics < m.nics_observed THEN m.nics || ' NICs were asked, ' || m.nics_observed || ' observed'
            WHEN m.nics > max(m.nics_observed) OVER (PARTITION BY m.run, m.attempt_id)
                THEN m.nics || ' NICs were asked, ' || m.nics_observed || ' observed'
            WHEN m.partial THEN 'partial: the last row before a death'
            WHEN a.outcome = 'wrong' THEN 'wrong: ' || coalesce(a.reason, '')
        END
    ) AS hidden
FROM derived AS m
INNER JOIN attempts AS a ON m.run = a.run AND m.attempt_id = a.attempt_id
LEFT JOIN stints AS r ON a.run = r.run AND a.stint = r.stint
LEFT JOIN excluded AS e ON m.run = e.run
