"""Files that are whole and durable once their name is there, the store's own clock, and plain words for its errors."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from archive.layout import TEMPORARY
from schemas.errors import ArchiveError

_TRANSIENT = frozenset({errno.EAGAIN, errno.EINTR, errno.ENOENT, errno.ESTALE})
"""ENOENT: somebody removed the folder while it was empty, or took our temporary for that of a dead writer."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = frozenset({errno.EACCES, errno.EPERM})
_TRIES = 5
_PAUSE_S = 0.05


def put_new(path: Path, data: memoryview) -> None:
    """Give durable bytes a name that did not exist. A repetition with the same bytes is fine.

    FileExistsError: the name holds other bytes. Any other OSError: the name is as it was before, or holds our
    bytes and may not be durable yet; in both cases the same call may be made again.
    """

    def link() -> None:
        with _temporary(path.parent, data) as temporary:
            try:
                _link(temporary, path)
            except FileExistsError:
                if path.read_bytes() != data:
                    raise

    _patiently(path.parent, link)


def put(path: Path, data: memoryview) -> None:
    """Give durable bytes a name, in place of what has it now."""

    def rename() -> None:
        with _temporary(path.parent, data) as temporary:
            temporary.replace(path)

    _patiently(path.parent, rename)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably. NotADirectoryError where a file is in the way."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
    sync_folder(folder.parent)


def sync_folders(folder: Path, top: Path) -> None:
    """Make the names on the way from `top` down to `folder` durable: who made them may have died before doing so."""
    while folder != top:
        folder = folder.parent
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def named_at(path: Path) -> float:
    """Tell when a file got its name, by the store's clock: its change time, which linking sets.

    (The modification time is that of the bytes, and a writer may be stopped between writing and linking.)
    """
    return path.stat().st_ctime


def now(folder: Path) -> float:
    """Tell the time by the clock of the store that holds a folder, by touching it: works on a full disk, too."""
    os.utime(folder)
    return named_at(folder)


@contextmanager
def explained(archive: Path) -> Iterator[None]:
    """Turn an OSError into one ArchiveError that says what is wrong with the archive and what to do."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"archive {archive}: {_words(archive, error)}") from error


def _words(archive: Path, error: OSError) -> str:
    where = error.filename2 or error.filename or archive
    if error.errno in _FULL:
        return "the disk is full; what was archived is safe: free some space, then resume"
    if error.errno == errno.EROFS:
        return "is on a read-only file system; name another with --archive"
    if error.errno in _DENIED:
        return f"{where} may not be written by this user; change its permissions, or name another with --archive"
    if error.errno == errno.ENOTDIR:
        blocking = next((each for each in (archive, *archive.parents) if each.exists()), archive)
        return f"{where if blocking.is_dir() else blocking} is no folder; name another with --archive"
    if error.errno == errno.EOPNOTSUPP:
        return "its file system has no hard links, which a durable append needs; name another with --archive"
    return f"{error.strerror or error} ({where})"


def _patiently(folder: Path, act: Callable[[], None]) -> None:
    """Make the folder, act in it, and make its names durable; again after errors that pass, a few times."""
    for left in reversed(range(_TRIES)):
        try:
            make_folder(folder)
            act()
            sync_folder(folder)
        except OSError as error:
            if not left or error.errno not in _TRANSIENT:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _link(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(path)) from error
        raise


@contextmanager
def _temporary(folder: Path, data: memoryview) -> Iterator[Path]:
    """Lay durable bytes down under a hidden name beside their future one (not every store links across folders)."""
    path = folder / f".{uuid4().hex}{TEMPORARY}"
    try:
        with path.open("xb", buffering=0) as file:
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)
