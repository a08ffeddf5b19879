"""How a lab's programs are started: ours in a fresh interpreter, anybody's in one of its hosts."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sweep import lab_namespaces, lab_state

Tell = Callable[[str], None]
"""Takes a line about what is going on."""


def program(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main(*arguments)` of a module of ours, wherever it is started."""
    root = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r}); from {module} import main; main(*sys.argv[1:])"
    return [sys.executable, "-P", "-c", code, *arguments]


def ourselves(*arguments: str) -> list[str]:
    """Return the command line of `sweep` itself, by this interpreter, whatever lies in the current directory."""
    root = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {root!r}); sys.argv[0] = 'sweep'; from sweep.__main__ import main; main()"
    return [sys.executable, "-P", "-c", code, *arguments]


def in_host(name: str, host: str, argv: Sequence[str]) -> list[str]:
    """Return the command line that runs `argv` on a host of a lab; see `sweep.lab.command`."""
    record = str(lab_state.folder(name) / lab_state.RECORD)
    return [sys.executable, "-I", "-S", lab_namespaces.__file__, record, host, *argv]


def finish(line: list[str], output: Path, seconds: float) -> int | None:
    """Run a command line with its output in a file; returns its exit code, or None when it had to be killed."""
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), write, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(line[0], line, os.environ, file_actions=actions)
    handle = os.pidfd_open(pid)
    try:
        ended = bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)
        os.kill(pid, signal.SIGKILL)  # in vain when it has ended, and needed when we were interrupted
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if ended else None
