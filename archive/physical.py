"""Rows as Parquet bytes: nested, one file for all tables, while a run is open; sorted, one per table, once sealed.

Each file carries a digest of all its other bytes between its last page and its footer, where Parquet readers do not
look: page checksums protect neither page headers nor the footer, whose statistics decide what a query skips.
"""

from __future__ import annotations

import hashlib
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

_MARK = b"blake2b:"
_DIGEST = 16
_TRAILER = 8
"""Bytes of a footer's length and the closing magic."""
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
        write_statistics=_ranged(table, version),
        row_group_size=_ROW_GROUP,
    )


def read_nested(part: Part) -> pa.Table:
    """Read a file of open/ as a table of `nested_schema`. ArchiveError names a corrupt file."""
    with reading(part.path, None, part.version) as file:
        return file.read(use_threads=False).cast(nested_schema(part.version))


def unnest(nested: pa.Table, version: int) -> dict[str, pa.Table]:
    """Take the rows of every table out of a table of `nested_schema`."""
    return {table: _rows(nested.column(table), row_schema(table, version)) for table in arrow.TABLES}


def read_tables(archive: Path, part: Part) -> dict[str, pa.Table]:
    """Read all rows that a file of open/, or a commit record with the files it implies, stands for, by table.

    ArchiveError names a corrupt file.
    """
    if part.table is None:
        return unnest(read_nested(part), part.version)
    tables = {}
    for table in arrow.TABLES:
        with reading(table_path(archive, table, part), table, part.version) as file:
            tables[table] = file.read().cast(row_schema(table, part.version))
    return tables


@contextmanager
def reading(path: Path, table: str | None, version: int) -> Iterator[pq.ParquetFile]:
    """Open a file that is whole to the last bit and has exactly the schema of its table (None: of a file in open/).

    ArchiveError names a file that is or has not; FileNotFoundError one that is gone.
    """
    fixed = parquet_schema(table, version)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if not is_whole(data):
            raise pa.ArrowInvalid("its digest does not fit its bytes")
        file = pq.ParquetFile(pa.BufferReader(data))
        if not file.schema.equals(fixed):
            raise pa.ArrowInvalid(f"it does not have version {version} of the schema of {table or 'open files'}")
        yield file
    except (pa.ArrowException, OSError) as error:
        reason, *_ = str(error).splitlines() or ["it cannot be read"]
        raise ArchiveError(f"{path} is corrupt: {reason}") from error


def is_whole(data: bytes) -> bool:
    """Tell whether Parquet bytes are those that we wrote, every one of them."""
    at = len(data) - _TRAILER - int.from_bytes(data[-_TRAILER:-4], "little") - len(_MARK) - _DIGEST
    if at < len(_MARK) or data[at : at + len(_MARK)] != _MARK:
        return False
    body = memoryview(data)
    footer = at + len(_MARK) + _DIGEST
    return _digest(body[:at], body[footer:]) == data[at + len(_MARK) : footer]


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
def _repetitive(table: str, version: int) -> list[str]:
    """Leaves worth a dictionary: all but floating point, where it made files a sixth larger."""
    columns = parquet_schema(table, version)
    leaves = [columns.column(i) for i in range(len(columns))]
    return [leaf.path for leaf in leaves if leaf.physical_type not in {"DOUBLE", "FLOAT", "BOOLEAN"}]


@cache
def _ranged(table: str, version: int) -> list[str]:
    """Columns whose extremes help a reader skip: not long text, whose extremes are as long as the text."""
    fields = arrow.schema(table, version)
    return [field.name for field in fields if not (pa.types.is_nested(field.type) or pa.types.is_string(field.type))]


def _encoded(table: pa.Table, marks: Mapping[str, str], **options: object) -> memoryview:
    sink = pa.BufferOutputStream()
    rows = options.pop("row_group_size", _ROW_GROUP)
    with pq.ParquetWriter(
        sink, table.schema, store_schema=False, data_page_version="1.0", write_page_checksum=True, **options
    ) as writer:
        writer.write_table(table, row_group_size=rows)
        if marks:
            writer.add_key_value_metadata(dict(marks))
    return _stamped(memoryview(sink.getvalue()))


def _stamped(data: memoryview) -> memoryview:
    """Put a digest before the footer; offsets in the footer stay true, being counted from the file's begin."""
    at = len(data) - _TRAILER - int.from_bytes(data[-_TRAILER:-4], "little")
    pages, footer = data[:at], data[at:]
    return memoryview(b"".join((pages, _MARK, _digest(pages, footer), footer)))


def _digest(pages: memoryview, footer: memoryview) -> bytes:
    state = hashlib.blake2b(pages, digest_size=_DIGEST)
    state.update(footer)
    return state.digest()
