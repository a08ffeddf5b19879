"""The process that a lab lives in: it makes the namespaces, the hosts and the wires, and holds them until it ends.

It is process 1 of the lab's PID namespace, so the kernel ends everything in the lab with it, however it ends. Each host
is a PID namespace inside, held by a process 1 of its own, with its own network, hostname, IPC, /proc, /sys, /run,
/dev/shm and boot id. Whoever started the supervisor is told over a socket what happens; if that one dies before it has
said that the lab is to be kept, the supervisor ends.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from sweep.lab_namespaces import (
    IPC,
    MOUNT,
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_SLAVE,
    NET,
    PID,
    USER,
    UTS,
    mount,
    set_name,
    unshare,
)
from sweep.lab_plan import SITE_FILE, SWITCH, Plan, host_table, site_text
from sweep.lab_state import RECORD

EVERYTHING = MOUNT | NET | UTS | IPC | PID
KEEP = b"keep"
"""What the starter says when the lab is up; a socket that closes without it ends the lab."""


LOOK_SECONDS = 5
MOST_DESCRIPTORS = 1 << 20


class _ReportedError(Exception):
    """What failed has been told over the socket."""


def main(descriptor: str) -> NoReturn:
    """Build the lab that the first message on this socket describes, and hold it. Ends this process."""
    channel = socket.socket(fileno=int(descriptor))
    order = json.loads(channel.recv(1 << 16))
    plan, record = Plan(**order["plan"]), os.open(order["folder"], os.O_PATH)
    _let_go_of_all_but(channel.fileno(), record)
    with contextlib.suppress(_ReportedError):
        with _step(channel, "namespaces"):
            leave_the_machine()
        if os.fork() == 0:
            _supervise(channel, plan, record)
    os._exit(0)


def _let_go_of_all_but(*descriptors: int) -> None:
    """Close what our starter left open in us: whoever waits for the end of a pipe of its would wait for the lab's."""
    edges = sorted({2, *descriptors, MOST_DESCRIPTORS})
    for low, high in itertools.pairwise(edges):
        os.closerange(low + 1, high)


def _tell(channel: socket.socket, **event: object) -> None:
    """Send one event; the receiver's kernel adds our pid as the receiver sees it."""
    channel.send(json.dumps(event).encode())


@contextlib.contextmanager
def _step(channel: socket.socket, what: str) -> Iterator[None]:
    """Tell the other side what failed and its error number, instead of leaving a traceback."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
        _tell(channel, failed=what, errno=number, text=str(error))
        raise _ReportedError from error


def leave_the_machine() -> None:
    """Enter new namespaces: root directly, others through a user namespace in which they are root."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        with contextlib.suppress(PermissionError):  # root of a container, without CAP_SYS_ADMIN, goes on as others do
            unshare(EVERYTHING)
            return
    unshare(EVERYTHING | USER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _supervise(channel: socket.socket, plan: Plan, record: int) -> None:
    set_name(f"lab {plan.name}")
    _end_on_signals()
    with _step(channel, "mounts"):
        mount("none", "/", "", MS_REC | MS_SLAVE)
        own_sys = _own_view(plan, SWITCH)
        _name_the_hosts(plan)
    with _step(channel, "bridges"):
        from sweep import lab_network  # not at import: only process 1 and its children need it

        lab_network.build_switch(plan.nics)
    _tell(channel, host=SWITCH, own_sys=own_sys)
    for host in plan.hosts:
        _add_host(channel, plan, host)
    _tell(channel, built=True)
    if channel.recv(len(KEEP)) == KEEP:
        channel.close()
        _adopt()
        _hold(record)


def _add_host(channel: socket.socket, plan: Plan, host: str) -> None:
    """Make a host by way of a child that ends once the host's own process 1 is there."""
    from sweep import lab_network

    child = os.fork()
    if child == 0:
        with contextlib.suppress(_ReportedError), _step(channel, "host"):
            unshare(EVERYTHING)
            lab_network.plug_in(plan, host, switch_pid=1)
            if os.fork() == 0:
                _be_host(channel, plan, host)
            os._exit(0)
        os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise _ReportedError
    with _step(channel, "wires"):
        lab_network.connect(plan, host)


def _be_host(channel: socket.socket, plan: Plan, host: str) -> NoReturn:
    """Be process 1 of a host: a view of its own, then nothing but adopting and reaping what is orphaned in it."""
    set_name(f"host {host}")
    _end_on_signals()
    own_sys = _own_view(plan, host)
    _own_boot_id()
    _tell(channel, host=host, own_sys=own_sys)
    channel.close()
    _adopt()
    while True:
        signal.pause()


def _end_on_signals() -> None:
    """End on a plain `kill`: process 1 of a PID namespace only gets the signals that it handles."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))


def _adopt() -> None:
    """Let the kernel reap whatever is orphaned in our PID namespace, from now on."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with contextlib.suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _hold(folder: int) -> None:
    """Hold the lab while its record is there, and keep that looking used, for those who tidy /tmp.

    Without its record nobody could end a lab: a session that ends takes its runtime folder away.
    """
    with contextlib.suppress(FileNotFoundError):
        while True:
            os.utime(RECORD, dir_fd=folder)
            time.sleep(LOOK_SECONDS)


def _own_view(plan: Plan, host: str) -> bool:
    """Give this host its own name and file systems that speak of it alone; says whether /sys could be its own."""
    socket.sethostname(host)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108 - a mount point, not a file
    for folder, mode in (("lab", 0o755), ("user", 0o700), ("tmp", 0o1777), ("lock", 0o1777)):
        place = Path("/run") / folder
        place.mkdir()
        place.chmod(mode)
    Path(SITE_FILE).write_text(site_text(plan))
    return _own_sys()


def _own_sys() -> bool:
    """Show this host's network devices in /sys/class/net, and keep the machine's cgroups, whose limits hold here too.

    A container that hides parts of /sys lets nobody mount another one: then the machine's devices stay in view.
    """
    aside = "/run/lab/cgroup"
    Path(aside).mkdir()
    mount("/sys/fs/cgroup", aside, "", MS_BIND | MS_REC)
    try:
        mount("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except PermissionError:
        return False
    mount(aside, "/sys/fs/cgroup", "", MS_MOVE)
    return True


def _own_boot_id() -> None:
    """Look like a machine of its own to libraries that take an equal boot id for shared memory (UCX, NCCL)."""
    file = Path("/run/lab/boot_id")
    file.write_text(f"{uuid.uuid4()}\n")
    mount(str(file), "/proc/sys/kernel/random/boot_id", "", MS_BIND)


def _name_the_hosts(plan: Plan) -> None:
    """Let every host resolve every other one."""
    table = Path("/run/lab/hosts")
    table.write_text(host_table(plan))
    mount(str(table), "/etc/hosts", "", MS_BIND)
