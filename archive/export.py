"""Results leave the archive as Parquet, through Arrow: the sandbox lets SQL itself write nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq


def write_parquet(relation: Any, target: Path | BinaryIO) -> None:
    """A relation's rows as one Parquet file (zstd)."""
    table = relation.to_arrow_table()
    pq.write_table(table, target, compression="zstd")
