-- Median time over launches, the stacks side by side; every other size, for one screen.
SELECT benchmark || '.' || operation AS benchmark, message_size,
       round(median(time) FILTER (stack = 'impi'), 2) AS "Intel MPI µs",
       round(median(time) FILTER (stack = 'mpich'), 2) AS "MPICH µs",
       round(max(bandwidth), 2) AS "best GB/s", count(*) AS launches
FROM results
WHERE log2(message_size)::INTEGER % 2 = 0
GROUP BY ALL
ORDER BY ALL
