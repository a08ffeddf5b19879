-- Median over launches, by operation, stack and size.
SELECT benchmark || '.' || operation AS benchmark, stack, message_size,
       round(median(time), 2) AS "time µs", round(median(bandwidth), 3) AS "GB/s", count(*) AS launches
FROM results
GROUP BY ALL
ORDER BY ALL
