"""The command line as a user types it, in a working directory of its own, and whatever it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import archive
from archive import layout
from tasks import node_part

PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What it said on stderr, line by line."""
        return self.err.splitlines()


@dataclass(slots=True)
class House:
    """A working directory with an archive, in which commands are typed; whatever they start carries a mark."""

    folder: Path
    mark: str = field(default_factory=lambda: f"SWEEP_TEST_MARK={uuid.uuid4().hex}")
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def archive(self) -> Path:
        """Where runs go."""
        return self.folder / "archive"

    def write(self, name: str, text: str) -> Path:
        """A file in the working directory; a script may be executed."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
        return path

    def spec(self, factors: str, run: str = "", more: str = "", name: str = "spec.toml") -> Path:
        """A spec of the benchmark `command`, unless the factors name another."""
        head = "" if "benchmark" in factors else 'benchmark = "command.run"\n'
        return self.write(name, f"[factors]\n{head}{factors}\n[run]\n{run}\n{more}\n")

    @property
    def said(self) -> str:
        """What a command that was started with `logged` has said so far."""
        return (self.folder / "said").read_text()

    def logged(self, *words: object) -> subprocess.Popen[str]:
        """Type `sweep WORDS` with stderr in a file."""
        with (self.folder / "said").open("w") as file:
            return self.start(*words, stderr=file)

    def start(
        self,
        *words: object,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("sweep",),
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Type `sweep WORDS`, without waiting for its end."""
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(program[0])), *program[1:], *map(str, words)],
            env={**os.environ, "SWEEP_ARCHIVE": str(self.archive), "COLUMNS": "200", name: value, **(env or {})},
            text=True,
            **{
                "cwd": self.folder,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "stdin": subprocess.DEVNULL,
                **options,
            },
        )
        self.started.append(process)
        return process

    def sweep(self, *words: object, **options: Any) -> Done:
        """Type `sweep WORDS`, to its end."""
        return finished(self.start(*words, **options))

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """What the archive answers."""
        rows: list[tuple[Any, ...]] = archive.open(self.archive).sql(text).fetchall()
        return rows

    def runs(self) -> list[str]:
        """Every run of the archive that has a row, oldest first."""
        found = layout.live(self.archive)
        return sorted({part.run for part in (*found.open, *found.sealed)})

    def alive(self) -> list[node_part.Seen]:
        """Living processes that stem from what was typed here."""
        return [
            seen
            for seen in node_part.processes().values()
            if self.mark in node_part.read(f"/proc/{seen.pid}/environ").split("\0")
        ]

    def named(self, name: str) -> list[node_part.Seen]:
        """Living processes from here whose name begins so."""
        return [seen for seen in self.alive() if seen.name.startswith(name)]

    def close(self) -> list[str]:
        """Wait a moment for the end of whatever was started here, kill the rest, and name it."""
        soon(lambda: not self.alive(), 15.0)
        left = self.alive()
        for seen in left:
            seen.send(signal.SIGKILL)
        for process in self.started:
            with process:
                process.kill()
        return [f"{seen.name} ({seen.pid})" for seen in left]


def finished(process: subprocess.Popen[str], seconds: float = PATIENCE_S) -> Done:
    """How a command ends, within our patience."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        pytest.fail(f"{process.args!r} does not end: {out}{err}")
    return Done(process.returncode, out or "", err or "")


def soon(happens: Callable[[], object], seconds: float = PATIENCE_S) -> bool:
    """Whether something happens within our patience."""
    until = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
