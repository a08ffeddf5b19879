"""The rank wrapper: gives one rank its own environment, says what the rank got, and becomes the program.

    python3 -I -S rank.py SPEC.json PROGRAM [ARGUMENT…]

Standard library alone, Python 3.9 or newer: a script that is laid into an attempt's folder as text and never imported
there. SPEC is {local: variables that tell the local rank, rank: variables that tell the rank, sets: [[environment of
each local rank, or one for all]…], nodes: {host name: its set}, record: variables to report}; without `nodes` the first
set is every node's. The report is JSON on lines of stderr that begin with MARK; `tasks/wrap.py` is the other end.
"""

from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False  # typing itself is not worth its import here
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, NoReturn

MARK = "sweep-rank "
LINE = 2000  # characters of a report's line, all ASCII: far below what any launcher or pipe may tear apart
REFUSED = 2
NOT_EXECUTABLE, NOT_FOUND = 126, 127  # as shells say it


def environment() -> dict[bytes, bytes]:
    """What the launcher gave: Python adds LC_CTYPE to its own where the locale is C."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - importing pathlib takes as long as all the rest
            entries = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            return {name: value for name, sign, value in entries if sign}
    except OSError:
        return dict(os.environb)


def said(env: Mapping[bytes, bytes], names: Iterable[str]) -> int | None:
    """The number in the first of these variables that holds one."""
    found = (env.get(os.fsencode(name), b"") for name in names)
    return next((int(value) for value in found if value.isdigit()), None)


def own(spec: Mapping[str, Any], host: str, local: int | None) -> dict[str, str]:
    """The environment of a local rank on a host; ValueError where the spec has none for it."""
    if spec["nodes"] and host not in spec["nodes"]:
        raise ValueError(f"{host} is none of the nodes of this launch")
    envs = spec["sets"][spec["nodes"].get(host, 0)]
    if len(envs) == 1:
        return dict(envs[0])
    if local is None:
        raise ValueError(f"no variable tells the local rank: {', '.join(spec['local'])}")
    if local >= len(envs):
        raise ValueError(f"local rank {local} on {host}, and the launch has {len(envs)} ranks per node")
    return dict(envs[local])


def ranges(cpus: Iterable[int]) -> str:
    """CPUs as the kernel lists them: "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def lines(head: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[str]:
    """The report in lines that stay whole; a value that no line holds is cut, and says so."""
    room = max(LINE - len(json.dumps(head)) - 20, LINE // 4)
    kept: dict[str, str] = {}
    for name, value in values.items():
        while len(value) > 1 and len(json.dumps({name: value})) > room:
            value = value[: len(value) // 2] + "…"  # noqa: PLW2901 - shorter, and still the same
        if kept and len(json.dumps({**kept, name: value})) > room:
            yield json.dumps({**head, "env": kept})
            kept = {}
        kept[name] = value
    yield json.dumps({**head, "env": kept})


def main(arguments: list[str]) -> NoReturn:
    """Sets, reports, and becomes the program; ends with a line that says why where it cannot."""
    with open(arguments[0], encoding="utf-8") as file:  # noqa: PTH123 - as above
        spec = json.load(file)
    env, host = environment(), os.uname().nodename
    local = said(env, spec["local"])
    try:
        env.update({os.fsencode(name): os.fsencode(value) for name, value in own(spec, host, local).items()})
    except ValueError as error:
        end(f"{error}", REFUSED)
    values = {name: os.fsdecode(env[os.fsencode(name)]) for name in spec["record"] if os.fsencode(name) in env}
    gpu = env.get(b"CUDA_VISIBLE_DEVICES")
    head = {
        "host": host,
        "rank": said(env, spec["rank"]),
        "local_rank": local,
        "cpus": ranges(os.sched_getaffinity(0)),
        "gpu": None if gpu is None else os.fsdecode(gpu),
    }
    os.write(2, "".join(f"{MARK}{line}\n" for line in lines(head, values)).encode("ascii"))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(arguments[1], arguments[1:], env)  # noqa: S606 - there is no shell
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        end(f"cannot start {arguments[1]}: {error.strerror}", code)


def end(why: str, code: int) -> NoReturn:
    """Says why, and ends."""
    os.write(2, f"sweep rank: {why}\n".encode("utf-8", "surrogateescape"))
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
