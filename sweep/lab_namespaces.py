"""The few Linux calls that a lab rests on, and, as a script, a command's way into one of its hosts.

The standard library alone, and little of it: the script runs without the packages of the interpreter that starts it.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

MOUNT, UTS, IPC, USER, PID, NET = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000
"""Kinds of namespace: CLONE_NEW* of <linux/sched.h>."""
KINDS: Mapping[str, int] = {"user": USER, "net": NET, "uts": UTS, "ipc": IPC, "mnt": MOUNT, "pid": PID}
"""Names below /proc/PID/ns, in the order in which they must be entered: the user namespace grants the rest."""

MS_BIND, MS_MOVE, MS_REC, MS_SLAVE = 0x1000, 0x2000, 0x4000, 0x80000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
SI_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent, such as a terminal's Ctrl-C (<asm-generic/siginfo.h>)."""


def _checked(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move this process into new namespaces (unshare(2)); raises OSError. Of `PID`, only its children are moved."""
    _checked(_libc().unshare(kinds))


def setns(descriptor: int, kind: int) -> None:
    """Move this process into an existing namespace (setns(2)); raises OSError."""
    _checked(_libc().setns(descriptor, kind))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount (mount(2)); raises OSError."""
    words = [word.encode() for word in (source, target, kind, options)]
    _checked(_libc().mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]))


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Let the kernel kill this process when its parent ends, however it ends."""
    _checked(_libc().prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0))


def set_name(name: str) -> None:
    """Give this process a name of at most 15 bytes, which `ps` and `top` show."""
    _checked(_libc().prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0))


def start_time(pid: int) -> int | None:
    """Start of a live process in clock ticks since boot, or None: with the pid it names one process for ever."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {b"Z", b"X"} else int(fields[19])


def join(pid: int) -> None:
    """Move this process into every namespace of `pid` that it is not in; its children are in the PID namespace too."""
    theirs, ours = Path(f"/proc/{pid}/ns"), Path("/proc/self/ns")
    wanted = [kind for kind in KINDS if not (theirs / kind).samefile(ours / kind)]
    descriptors = [(os.open(theirs / kind, os.O_RDONLY), KINDS[kind]) for kind in wanted]
    for descriptor, kind in descriptors:
        setns(descriptor, kind)
        os.close(descriptor)


def run_in_host(record: str, host: str, argv: Sequence[str]) -> NoReturn:
    """Run `argv` in a host of the lab whose record is given, then exit as it did (128 + n after signal n).

    The command sees the current directory. It ends when this process ends, and gets the signals that this one gets.
    """
    entry, lab = _find(record, host)
    environment = {name: value for name, value in os.environ.items() if name not in lab["unset"]} | lab["env"]
    environment |= {"SWEEP_LAB_NODE": host}
    here = Path.cwd()
    own_group = not os.isatty(0)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, signal.SIGCHLD))
    parent = os.pidfd_open(os.getpid())
    try:
        join(entry["pid"])
        child = os.fork()
    except OSError as error:  # the host, or the whole lab, ended under our hands
        _refuse(f"host {host!r} cannot be entered: {error.strerror}")
    if child == 0:
        _become(argv, here, environment, parent=parent, own_group=own_group)
    _relay(child, everything=own_group)


def _find(record: str, host: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host's entry, and the lab's whole record."""
    file = Path(record)
    lab = json.loads(file.read_bytes()) if file.exists() else {"hosts": []}
    entry = next((entry for entry in lab["hosts"] if entry["name"] == host), None)
    if entry is None or start_time(entry["pid"]) != entry["start"]:
        _refuse(f"no host {host!r} is up in the lab {file.parent.name!r}")
    return entry, lab


def _become(
    argv: Sequence[str], folder: Path, environment: Mapping[str, str], *, parent: int, own_group: bool
) -> NoReturn:
    die_with_parent()
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)
    if own_group:
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and what is ignored stays so after exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvpe(argv[0], list(argv), environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        _refuse(f"{error.strerror}: {error.filename or argv[0]} (in the lab /run and /dev/shm are each host's own)")


def _relay(child: int, *, everything: bool) -> NoReturn:
    """Pass signals on until the child ends. A terminal's own signals reach a child in our process group without us."""
    while True:
        info = signal.sigwaitinfo((*FORWARDED, signal.SIGCHLD))
        if info.si_signo != signal.SIGCHLD:
            if everything or info.si_code != SI_KERNEL:
                os.kill(child, info.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _refuse(text: str) -> NoReturn:
    os.write(2, f"sweep lab: {text}\n".encode())
    os._exit(3)


if __name__ == "__main__":
    run_in_host(sys.argv[1], sys.argv[2], sys.argv[3:])
