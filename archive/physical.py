"""Rows as Parquet bytes: nested, one file for all tables, while a run is open; sorted, one per table, once sealed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archive.layout import Part, table_path
from schemas import arrow
from schemas.errors import ArchiveError

_LEVEL = 3
_ROW_GROUP = 122_880
_COMPRESSED = {"outputs.list.element.text": "zstd"}
"""Of a single append; on the other 150 columns compressing costs more time than it saves bytes."""


@cache
def row_schema(table: str, version: int) -> pa.Schema:
    """Give a table's fixed schema as Parquet stores it: words as plain text, dictionaries being an encoding there."""
    fields = arrow.schema(table, version)
    return pa.schema([field.with_type(_plain(field.type)) for field in fields])


@cache
def nested_schema(version: int) -> pa.Schema:
    """Give the schema of a file in open/: one list of structs per table, one row per append."""
    return pa.schema(
        [
            pa.field(table, pa.list_(pa.struct(list(row_schema(table, version)))), nullable=False)
            for table in arrow.TABLES
        ]
    )


@cache
def parquet_schema(table: str | None, version: int) -> pq.ParquetSchema:
    """Give the Parquet schema that a sealed file of a table, or with None a file in open/, must have exactly."""
    fixed = nested_schema(version) if table is None else row_schema(table, version)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([], fixed), sink, store_schema=False)
    return pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema


def nest(rows: arrow.Rows) -> pa.Table:
    """Put the rows of one append into one row of `nested_schema`.

    ValueError for a table or a column that no schema knows.
    """
    if unknown := rows.keys() - set(arrow.TABLES):
        raise ValueError(f"no table {', '.join(sorted(unknown))}")
    schema = nested_schema(arrow.VERSION)
    return pa.table([_listed(arrow.to_table(name, rows.get(name, ()))) for name in arrow.TABLES], schema=schema)


def append_bytes(nested: pa.Table, marks: Mapping[str, str]) -> memoryview:
    """Encode one append, quickly: only long text is compressed. The same rows and marks give the same bytes."""
    return _encoded(nested, marks, compression=_COMPRESSED, use_dictionary=False, write_statistics=False)


def merged_bytes(nested: pa.Table, marks: Mapping[str, str]) -> memoryview:
    """Encode many appends as one file of open/."""
    return _encoded(nested, marks, compression="zstd", compression_level=_LEVEL, write_statistics=False)


def sealed_bytes(table: str, rows: Sequence[pa.Table], version: int) -> memoryview:
    """Encode all rows of a table, sorted as `schemas.arrow.SORT` says. The same rows give the same bytes."""
    whole = pa.concat_tables([pa.Table.from_batches([], row_schema(table, version)), *rows])
    keys = pa.table({key: _comparable(whole.column(key)) for key in arrow.SORT[table]})
    order = pc.sort_indices(keys, [(key, "ascending") for key in arrow.SORT[table]])
    return _encoded(
        whole.take(order),
        {},
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=_repetitive(table, version),
        row_group_size=_ROW_GROUP,
    )


def read_nested(part: Part) -> pa.Table:
    """Read a file of open/ as a table of `nested_schema`. ArchiveError names a corrupt file."""
    with reading(part.path, None, part.version) as file:
        return file.read(use_threads=False).cast(nested_schema(part.version))


def read_tables(archive: Path, part: Part) -> dict[str, pa.Table]:
    """Read all rows that a file of open/, or a commit record with the files it implies, stands for, by table.

    ArchiveError names a corrupt file.
    """
    if part.table is None:
        nested = read_nested(part)
        return {table: _rows(nested.column(table), row_schema(table, part.version)) for table in arrow.TABLES}
    tables = {}
    for table in arrow.TABLES:
        with reading(table_path(archive, table, part), table, part.version) as file:
            tables[table] = file.read().cast(row_schema(table, part.version))
    return tables


@contextmanager
def reading(path: Path, table: str | None, version: int) -> Iterator[pq.ParquetFile]:
    """Open a file whose schema is exactly that of the table, page checksums verified as they are read.

    ArchiveError names a file that is corrupt or has another schema; FileNotFoundError one that is gone.
    """
    fixed = parquet_schema(table, version)
    try:
        with pa.OSFile(str(path)) as handle:
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            if not file.schema.equals(fixed):
                raise ArchiveError(f"{path} does not have version {version} of the schema of {table or 'open files'}")
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        reason, *_ = str(error).splitlines() or ["it cannot be read"]
        raise ArchiveError(f"{path} is corrupt: {reason}") from error


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _rows(lists: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    rows = (pa.Table.from_struct_array(chunk.flatten()).cast(schema) for chunk in lists.chunks)
    return pa.concat_tables([pa.Table.from_batches([], schema), *rows])


def _listed(rows: pa.Table) -> pa.ListArray:
    """One list that holds all rows."""
    columns = [_array(column) for column in rows.columns]
    fields = [field.with_type(_plain(field.type)) for field in rows.schema]
    return pa.ListArray.from_arrays(
        pa.array([0, len(rows)], pa.int32()), pa.StructArray.from_arrays(columns, fields=fields)
    )


def _array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Ids sort by their bytes; Arrow has no order for extension types."""
    if not isinstance(column.type, pa.BaseExtensionType):
        return column
    kind = column.type.storage_type
    return pa.chunked_array([chunk.storage for chunk in column.chunks], kind)


@cache
def _repetitive(table: str, version: int) -> tuple[str, ...]:
    """Leaves worth a dictionary: all but floating point, where it made files a sixth larger."""
    columns = parquet_schema(table, version)
    leaves = [columns.column(i) for i in range(len(columns))]
    return tuple(leaf.path for leaf in leaves if leaf.physical_type not in {"DOUBLE", "FLOAT", "BOOLEAN"})


def _encoded(table: pa.Table, marks: Mapping[str, str], **options: object) -> memoryview:
    sink = pa.BufferOutputStream()
    rows = options.pop("row_group_size", _ROW_GROUP)
    with pq.ParquetWriter(
        sink, table.schema, store_schema=False, data_page_version="1.0", write_page_checksum=True, **options
    ) as writer:
        writer.write_table(table, row_group_size=rows)
        if marks:
            writer.add_key_value_metadata(dict(marks))
    return memoryview(sink.getvalue())
