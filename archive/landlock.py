"""The kernel's own fence around a process that runs foreign SQL: read these folders, write that one, no network.

Landlock (Linux 5.13 and later) needs no privileges and cannot be undone by the process it holds. The C library has
no functions for it, so the system calls are made by number; the numbers are the same on every architecture.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import sysconfig
import zoneinfo
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_PR_SET_NO_NEW_PRIVS = 38
_RULE_PATH_BENEATH = 1
_VERSION = 1 << 0

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""ABI version -> every file right that it can take away; versions between add none."""
_READ = _READ_FILE | _READ_DIR
_ON_FILES = 1 << 0 | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
"""The rights that a rule for a single file may name."""
_NETWORK = 1 << 0 | 1 << 1
"""TCP bind and connect, from ABI version 4 on."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def restrict(archive: Path, temporary: Path, read: Iterable[Path] = ()) -> str | None:
    """Restrict this thread, and all that it starts later, for ever; None where that holds, else why it does not.

    From then on files can be opened only below `archive` and `read` (to read) and below `temporary` (to read and
    write); Python's own libraries and the time zones stay readable, for they are imported late. Nothing can be
    executed, and no TCP connection made. What is open stays open. Call it before the first `Archive.sql`: DuckDB's
    threads inherit the restriction only if they start after it.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no Landlock"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    if version < 1:
        return f"the kernel has no Landlock ({os.strerror(ctypes.get_errno())})"
    rights = _RIGHTS[max(known for known in _RIGHTS if known <= version)]
    try:
        _enter(libc, version, rights, archive, temporary, read)
    except OSError as error:
        return f"Landlock: {error.strerror}"
    return None


def _enter(libc: ctypes.CDLL, version: int, rights: int, archive: Path, temporary: Path, read: Iterable[Path]) -> None:
    attributes = _Ruleset(rights, _NETWORK, 0)
    size = ctypes.sizeof(attributes) if version >= 6 else 16 if version >= 4 else 8
    ruleset = _checked(
        libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0))
    )
    try:
        for path in {archive, *read, *_program()}:
            _allow(libc, ruleset, path, _READ)
        _allow(libc, ruleset, temporary, rights & ~1)
        _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _checked(libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


_LATE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/proc/self/cgroup", "/proc/meminfo", "/sys/fs/cgroup")
"""Compiled modules load their libraries late, and DuckDB asks how much memory it may have."""


def _program() -> set[Path]:
    """Folders of Python, of our own code and of the time zones, as far as they exist."""
    places = sysconfig.get_paths()
    names = {places[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")} | set(zoneinfo.TZPATH)
    home = Path(__file__).parent.parent
    ours = (home / room for room in ("archive", "schemas", "sweep", "tasks"))
    return {path for path in (*map(Path, names), *ours, *map(Path, _LATE)) if path.exists()}


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= _ON_FILES
        rule = _PathBeneath(rights, handle)
        _checked(
            libc.syscall(_ADD_RULE, ruleset, ctypes.c_int(_RULE_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
        )
    finally:
        os.close(handle)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
