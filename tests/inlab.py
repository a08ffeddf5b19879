"""Commands typed on a host of a lab, and what of ours lives on its hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sweep import lab
from tasks import node_part
from tests.house import Done, House, finished

SWEEP = str(Path(sys.executable).with_name("sweep"))


def start(
    house: House, name: str, host: str, words: Iterable[object], env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Type a command on a host, in the working directory of a house, without waiting for its end."""
    mark, _, value = house.mark.partition("=")
    process = subprocess.Popen(
        lab.command(name, host, [str(word) for word in words]),
        env={**os.environ, mark: value, "SWEEP_ARCHIVE": str(house.archive), "COLUMNS": "200", **(env or {})},
        cwd=house.folder,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    house.started.append(process)
    return process


def typed(house: House, name: str, host: str, words: Iterable[object], env: Mapping[str, str] | None = None) -> Done:
    """Type it, to its end."""
    return finished(start(house, name, host, words, env))


def processes(name: str, hosts: Iterable[str], wanted: str) -> list[tuple[str, int]]:
    """Host and number of every process whose name or command line begins so."""
    pids = [(host, pid) for host in hosts for pid in lab.pids(name, host)]
    return [(host, pid) for host, pid in pids if any(text.startswith(wanted) for text in _words(pid))]


def driver(house: House) -> int:
    """The process number of the one `sweep` that was typed and is still there."""
    lines = {seen.pid: node_part.read(f"/proc/{seen.pid}/cmdline").split("\0") for seen in house.alive()}
    [pid] = [pid for pid, line in lines.items() if line[1:2] == [SWEEP]]
    return pid


def attempt_folder(name: str, host: str) -> Path:
    """The folder on every node of the one attempt that runs on a host."""
    marks = {node_part.environment(pid).get(node_part.ATTEMPT) for pid in lab.pids(name, host)}
    [attempt] = marks - {None}
    return Path(f"/tmp/sweep-attempt-{attempt}")


def _words(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}")
    try:
        command = (folder / "cmdline").read_text().replace("\0", " ").removeprefix("/usr/bin/")  # as srun spells it
        return [(folder / "comm").read_text(), command]
    except (FileNotFoundError, ProcessLookupError):
        return []
