-- Every attempt that did not end well, newest first, with the reason and the lines that prove it.
-- `final` tells whether no further attempt of that trial followed; `unsupported` is among them: nothing was launched.
SELECT
    start,
    run,
    benchmark,
    operation,
    nodes,
    ranks_per_node,
    nics,
    sharp,
    placement,
    stack,
    factors,
    phase,
    outcome,
    reason,
    proof,
    exit_code,
    signal,
    node_names,
    contaminated,
    elapsed_s,
    repeat,
    attempt,
    final,
    sizes,
    missing,
    trial_id,
    attempt_id
FROM attempts
WHERE outcome <> 'ok'
ORDER BY start DESC, attempt_id
