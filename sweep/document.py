"""A user's TOML file: read once, every problem said with file, line and key."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas.errors import InputError, Problem
from sweep.place import home

Key = tuple[str | int, ...]

_LARGEST = 16 * 1024 * 1024  # bytes; a spec has a few kilobytes, /dev/zero has no end
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_CLOSING = re.compile(r"\]|\"{3}|'{3}")  # only such a line can end a statement of several lines
_AT = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)


class Document:
    """A parsed TOML file that collects what is wrong with it."""

    def __init__(self, path: Path, environ: Mapping[str, str], text: str, data: Mapping[str, Any]) -> None:
        self.source = str(path)
        self.path = path.absolute()
        self.environ = environ
        self.text = text
        self.data = data
        self._problems: list[tuple[int, Problem]] = []
        self._lines: dict[Key, int] | None = None

    @property
    def problems(self) -> list[Problem]:
        """All that was found wrong, in the order of the file."""
        return [problem for _, problem in sorted(self._problems, key=lambda each: each[0])]

    def line(self, key: Key) -> int:
        """Find the line on which a key, or the nearest table around it, begins; 0 where the file has nothing of it."""
        if self._lines is None:
            self._lines = _lines(self.text)
        known = (self._lines.get(key[:length], 0) for length in range(len(key), 0, -1))
        return next(filter(None, known), 0)

    def absolute(self, text: str) -> str:
        """Make a path absolute: ~ is the home folder, a relative path starts at this file's folder.

        `.` and `..` go by their spelling; links are left alone, for they may differ between nodes.
        """
        if text == "~" or text.startswith("~/"):
            return os.path.normpath(home(self.environ) / text[2:])
        return os.path.normpath(self.path.parent / text)

    def wrong(self, key: Key, what: str, remedy: str = "") -> None:
        """Note a problem at a key, as `file:line: key: what; remedy`."""
        line = self.line(key)
        where = f"{self.source}:{line}" if line else self.source
        self._problems.append((line, Problem(f"{where}: {dotted(key)}", what, remedy)))


def read(path: Path, kind: str, environ: Mapping[str, str]) -> Document:
    """Read a TOML file; InputError of one line if it is missing, unreadable, not UTF-8 or not TOML.

    `kind` is the word for it in errors: "spec", "site file", "inventory". HOME in `environ` is what ~ means.
    """
    return parse(path, text_of(path, kind), environ)


def parse(path: Path, text: str, environ: Mapping[str, str]) -> Document:
    """Parse the text of a TOML file that is, or was, at `path`; InputError of one line if it is not TOML."""
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InputError(Problem(str(path), "not valid TOML: nested too deeply")) from None
    except ValueError as error:  # TOMLDecodeError is one; so is Python's limit on digits
        raise InputError(_syntax(str(path), text, str(error))) from None
    return Document(path, environ, text, data)


def dotted(key: Key) -> str:
    """Write a key as TOML does: `levels.stack."a.b"`, `include[0].nodes`."""
    shown = ""
    for part in key:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += ("." if shown else "") + (part if _BARE.fullmatch(part) else json.dumps(part))
    return shown


def text_of(path: Path, kind: str) -> str:
    """Read a user's text file whole; InputError of one line if it is missing, unreadable, too large, or not UTF-8."""
    source = str(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST + 1)
    except FileNotFoundError:
        raise InputError(Problem(source, f"no such {kind}")) from None
    except IsADirectoryError:
        raise InputError(Problem(source, f"is a directory, not a {kind}")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(Problem(source, f"cannot read this {kind}: {reason}")) from None
    if len(raw) > _LARGEST:
        raise InputError(Problem(source, f"is larger than {_LARGEST >> 20} MiB, so it is no {kind}"))
    try:
        # the mark that some editors put first is not TOML
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise InputError(Problem(f"{source}:{line}", what, f"save the {kind} as UTF-8")) from None


def _syntax(source: str, text: str, message: str) -> Problem:
    """Make one line, with line and column in front, of tomllib's message."""
    match = _AT.fullmatch(message)
    if match is None:
        return Problem(source, f"not valid TOML: {message}")
    lines = text.split("\n")
    line, column = (match[2], match[3]) if match[2] else (len(lines), len(lines[-1]) + 1)
    what = match[1][:1].lower() + re.sub(r"\s+", " ", match[1][1:])
    return Problem(f"{source}:{line}:{column}", f"not valid TOML: {what}")


def _lines(text: str) -> dict[Key, int]:
    """Map every key of a valid TOML text to the line on which its statement begins.

    tomllib keeps no positions; a statement is the shortest run of lines that is TOML by itself.
    """
    found: dict[Key, int] = {}
    tables: dict[Key, int] = {}  # arrays of tables and how many were seen
    base: Key = ()
    lines = text.split("\n")
    start = 0
    for end in range(1, len(lines) + 1):
        if end > start + 1 and not _CLOSING.search(lines[end - 1]):
            continue  # a long list must not be parsed once per line
        try:
            data = tomllib.loads("\n".join(lines[start:end]))
        except ValueError:
            continue
        if lines[start].lstrip().startswith("["):
            base = _header(data, tables)
            for length in range(1, len(base) + 1):
                found.setdefault(base[:length], start + 1)
        else:
            for key in _keys(data):
                found.setdefault(base + key, start + 1)
        start = end
    return found


def _header(data: object, tables: dict[Key, int]) -> Key:
    """Name the table that a header opens, with the index of each array of tables on its way."""
    key: Key = ()
    while data:
        if isinstance(data, list):
            tables[key] = tables.get(key, -1) + 1
            return (*key, tables[key])
        assert isinstance(data, dict)
        ((name, data),) = data.items()
        key = (*key, name)
        if data and not isinstance(data, list) and key in tables:
            key = (*key, tables[key])
    return key


def _keys(data: object) -> Iterator[Key]:
    items: Any = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        yield (name,)
        for rest in _keys(value):
            yield (name, *rest)
