"""Arrow schemas of the seven tables, one fixed schema per table and version; changes are additive.

Adding a column: append it to the newest version's successor (`_TABLES[n + 1]`), never edit an old one; the
version is part of each file's name, and views union the versions by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

VERSION = 1
"""What we write."""

TABLES = ("runs", "events", "nodes", "attempts", "measurements", "counters", "outputs")

_ID = pa.uuid()
_WORD = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.list_(pa.string())
_MAP = pa.map_(pa.string(), pa.string())

_CORE: tuple[tuple[str, pa.DataType], ...] = (
    ("benchmark", _WORD),
    ("operation", _WORD),
    ("nodes", pa.int32()),
    ("ranks_per_node", pa.int32()),
    ("nics", pa.int32()),
    ("sharp", _WORD),
    ("placement", _WORD),
    ("stack", _WORD),
)
"""The core factors (message size stands beside them in `measurements`); null where not asked."""

_NIC = pa.struct(
    [
        ("name", pa.string()),
        ("link_layer", pa.string()),
        ("rate_gbps", pa.float64()),
        ("state", pa.string()),
        ("numa", pa.int32()),
        ("address", pa.string()),
        ("firmware", pa.string()),
    ]
)
_TRAFFIC = pa.struct([("node", pa.string()), ("nic", pa.string()), ("tx_bytes", pa.int64()), ("rx_bytes", pa.int64())])

_V1: dict[str, tuple[tuple[str, pa.DataType], ...]] = {
    "runs": (
        ("run", _WORD),
        ("stint", pa.int32()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("campaign", pa.string()),
        ("tags", _TEXTS),
        ("cluster", pa.string()),
        ("spec", pa.string()),
        ("spec_path", pa.string()),  # relative paths in it count from its folder
        ("spec_hash", _ID),
        ("site", pa.string()),
        ("site_path", pa.string()),
        ("site_hash", _ID),
        ("versions", _MAP),
        ("seed", pa.int64()),
        ("trials", pa.int64()),
        ("points", pa.int64()),
        ("user", pa.string()),
        ("driver_host", pa.string()),
        ("driver_pid", pa.int64()),
        ("job_id", pa.string()),
        ("argv", _TEXTS),
        ("start", _TIME),
    ),
    "events": (
        ("run", _WORD),
        ("stint", pa.int32()),
        ("time", _TIME),
        ("scope", _WORD),
        ("subject", pa.string()),
        ("kind", _WORD),
        ("author", pa.string()),
        ("text", pa.string()),
    ),
    "nodes": (
        ("run", _WORD),
        ("stint", pa.int32()),
        ("node", pa.string()),
        ("address", pa.string()),
        ("cpus", pa.int32()),
        ("memory_bytes", pa.int64()),
        ("nics", pa.list_(_NIC)),
        ("facts", _MAP),
    ),
    "attempts": (
        ("run", _WORD),
        ("stint", pa.int32()),
        ("trial_id", _ID),
        ("attempt_id", _ID),
        ("attempt", pa.int32()),  # from 1, counted over all stints
        ("setup_id", _ID),
        ("block_id", _ID),
        ("block_try", pa.int32()),
        ("block", pa.int32()),
        ("position", pa.int32()),
        ("repeat", pa.int32()),
        ("slot", pa.int32()),
        ("phase", _WORD),  # measure, warmup, witness, probe
        *_CORE,
        ("factors", _MAP),
        ("parameters", _MAP),
        ("setup", pa.string()),  # canonical JSON of what setup_id hashes
        ("sizes", pa.list_(pa.int64())),
        ("missing", pa.list_(pa.int64())),
        ("outcome", _WORD),
        ("reason", pa.string()),
        ("proof", _TEXTS),  # the lines that name the reason
        ("final", pa.bool_()),  # no further attempt of this trial follows
        ("exit_code", pa.int32()),
        ("signal", pa.int32()),
        ("node_names", _TEXTS),
        ("nic_set", _TEXTS),
        ("argv", pa.list_(pa.struct([("role", pa.string()), ("node", pa.string()), ("argv", _TEXTS)]))),
        ("environment", _MAP),
        ("start", _TIME),
        ("elapsed_s", pa.float64()),
        ("beside", _TEXTS),  # attempts that ran at the same time, on other nodes
        ("killed", pa.int32()),
        ("left", pa.list_(pa.int64())),
        ("notes", _TEXTS),
        ("evidence", _MAP),
        ("traffic", pa.list_(_TRAFFIC)),
        ("contaminated", pa.bool_()),
        ("launch_revision", pa.int32()),
        ("imported", pa.bool_()),
    ),
    "measurements": (
        ("run", _WORD),
        ("start", _TIME),  # of the attempt
        ("trial_id", _ID),
        ("attempt_id", _ID),
        ("point_id", _ID),
        ("setup_id", _ID),
        ("block_id", _ID),
        *_CORE,
        ("message_size", pa.int64()),
        ("payload_bytes", pa.int64()),
        ("metric", _WORD),
        ("value", pa.float64()),
        ("unit", _WORD),
        ("variant", _WORD),
        ("algorithm", _WORD),
        ("protocol", _WORD),
        ("sharp_observed", pa.bool_()),
        ("nics_observed", pa.int32()),
        ("evidence", _WORD),  # requested, initialised, selected, counted
        ("t_begin", pa.float64()),
        ("t_end", pa.float64()),
        ("samples", pa.int64()),
        ("partial", pa.bool_()),
        ("phase", _WORD),
        ("repeat", pa.int32()),
        ("slot", pa.int32()),
        ("parser_revision", pa.int32()),
    ),
    "counters": (
        ("run", _WORD),
        ("attempt_id", _ID),
        ("node", _WORD),
        ("device", _WORD),
        ("counter", _WORD),
        ("start", _TIME),
        ("elapsed", pa.list_(pa.float64())),
        ("delta", pa.list_(pa.int64())),
    ),
    "outputs": (
        ("run", _WORD),
        ("attempt_id", _ID),
        ("role", _WORD),
        ("node", _WORD),
        ("stream", _WORD),
        ("text", pa.string()),
        ("stamps", pa.list_(pa.float64())),  # seconds since the attempt's start, one per archived line
        ("size", pa.int64()),  # bytes that the program wrote
        ("truncated", pa.bool_()),  # head and tail only: never reparsed
    ),
}

_TABLES: dict[int, dict[str, pa.Schema]] = {1: {name: pa.schema(list(fields)) for name, fields in _V1.items()}}

SORT: Mapping[str, tuple[str, ...]] = {
    "runs": ("run", "stint"),
    "events": ("run", "time"),
    "nodes": ("run", "stint", "node"),
    "attempts": ("benchmark", "operation", "nodes", "nics", "sharp", "start"),
    "measurements": ("benchmark", "operation", "metric", "variant", "nodes", "nics", "sharp", "message_size", "start"),
    "counters": ("run", "attempt_id", "node", "device", "counter"),
    "outputs": ("run", "attempt_id", "role", "node", "stream"),
}
"""Sorted by what people filter on."""

Row = Mapping[str, object]
Rows = Mapping[str, Sequence[Row]]
"""table -> rows; a column that a row does not name is null, a name that is no column is an error."""


def schema(table: str, version: int = VERSION) -> pa.Schema:
    """The fixed schema of a table in a version. KeyError for what never existed."""
    return _TABLES[version][table]


def to_table(name: str, rows: Sequence[Row], version: int = VERSION) -> pa.Table:
    """Rows as an Arrow table of exactly the fixed schema.

    UUID columns take `uuid.UUID` or 16 bytes, maps take dicts, times take aware datetimes.
    ValueError for a column that the schema does not know, so that a misspelt name never becomes a silent null.
    """
    fixed = schema(name, version)
    known = set(fixed.names)
    for row in rows:
        if unknown := row.keys() - known:
            raise ValueError(f"{name} has no column {', '.join(sorted(unknown))}")
    return pa.table(
        {field.name: _column([row.get(field.name) for row in rows], field.type) for field in fixed}, schema=fixed
    )


def _column(values: list[object], kind: pa.DataType) -> pa.Array:
    if kind == _ID:
        raw = [getattr(value, "bytes", value) for value in values]
        return pa.ExtensionArray.from_storage(kind, pa.array(raw, pa.binary(16)))
    if pa.types.is_map(kind):
        values = [None if value is None else sorted(value.items()) for value in values]  # type: ignore[attr-defined]
    return pa.array(values, kind)
