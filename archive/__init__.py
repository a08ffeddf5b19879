"""The archive: Parquet that outlives everything else, asked through DuckDB. Importing this room loads neither."""

from __future__ import annotations

from pathlib import Path

from archive.query import Archive, RunRecord
from archive.sandbox import Limits
from schemas.errors import ArchiveError

__all__ = ["Archive", "Limits", "RunRecord", "open"]


def open(path: str | Path, *, create: bool = False) -> Archive:  # noqa: A001 - archive.open is what it does
    """Open the archive in a local folder to ask it; `create` makes the folder where there is none.

    ArchiveError where there is no such folder, or it cannot be made.
    """
    if "://" in str(path):
        raise ArchiveError(f"archive {path}: a remote archive is not supported yet; name a local folder")
    folder = Path(path).expanduser().absolute()
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            raise ArchiveError(f"archive {folder}: there is no such folder; name another with --archive")
        if not folder.is_dir():
            raise ArchiveError(f"archive {folder}: this is a file, an archive is a folder")
    except OSError as error:
        raise ArchiveError(f"archive {folder}: {error.strerror}") from error
    return Archive(folder)
