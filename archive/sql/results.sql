-- What was measured: one wide row per attempt, message size and variant, in canonical units
-- (time in us, bandwidth, algbw and busbw in GB/s, message_rate per second).
-- Rows that do not count are left out: another phase than `measure`, excluded by somebody, measured under a wrong
-- label (what was observed contradicts `sharp` or `nics`), perhaps cut, or found wrong by the tool's own check.
-- `results_all` shows them, and says why.
-- Every metric of a row, those without a column too, is in the map `metrics`: metrics['tokens_per_second'].
SELECT * EXCLUDE (phase, partial, hidden)
FROM results_all
WHERE phase = 'measure' AND hidden IS NULL
