"""What is known of the labs of this user: one private folder per lab, whose record names processes by pid and start."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from schemas.errors import SiteError
from sweep.lab_namespaces import start_time
from sweep.lab_plan import Plan

RECORD = "lab.json"
END_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a lab: its process 1 as the machine sees it, and its addresses by device."""

    name: str
    pid: int
    start: int
    addresses: Mapping[str, str]
    own_sys: bool
    """Whether /sys shows this host's own devices; /proc/net/dev always does."""

    @property
    def alive(self) -> bool:
        """Whether the host is still there."""
        return start_time(self.pid) == self.start


@dataclass(frozen=True, slots=True)
class Lab:
    """A lab that was built; `hosts` are the switch (whose process 1 is the supervisor), the head, and the nodes."""

    plan: Plan
    hosts: tuple[Host, ...]
    env: Mapping[str, str]
    """Environment that every process in the lab gets, the Ray token included: never show it."""
    unset: tuple[str, ...]
    """Variables that no process in the lab inherits from the machine."""
    since: float
    """Seconds since the epoch."""
    ready: bool

    @property
    def name(self) -> str:
        """Its name."""
        return self.plan.name

    @property
    def alive(self) -> bool:
        """Whether its supervisor is still there, and with it everything else."""
        return self.hosts[0].alive

    @property
    def address(self) -> str | None:
        """Address of its Ray cluster, as seen from inside, or None for a lab without Ray."""
        return self.env.get("RAY_ADDRESS")

    def host(self, name: str) -> Host | None:
        """The host of this name, or None."""
        return next((host for host in self.hosts if host.name == name), None)


def labs_folder() -> Path:
    """The folder that holds one folder per lab of this user: below XDG_RUNTIME_DIR where it is ours, else /tmp."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_ours(Path(runtime)):
        return Path(runtime) / "fabric-sweep" / "lab"
    return Path(f"/tmp/fabric-sweep-{os.geteuid()}") / "lab"  # noqa: S108 - made 0700 and checked to be ours


def folder(name: str) -> Path:
    """The folder of one lab."""
    return labs_folder() / name


def names() -> list[str]:
    """Names of the labs of this user that have a record."""
    return sorted(record.parent.name for record in labs_folder().glob(f"*/{RECORD}"))


@contextlib.contextmanager
def locked(name: str, wait: Callable[[], None]) -> Iterator[Path]:
    """Hold the lab's folder, made if need be, against other `up` and `down`; calls `wait` before it waits for one."""
    handle = None
    while handle is None:
        with contextlib.suppress(FileNotFoundError):  # its holder has just removed it: make it anew
            _make_private(folder(name))
            handle = _take(folder(name), wait)
    try:
        yield folder(name)
    finally:
        os.close(handle)


def read(name: str) -> Lab | None:
    """The record of a lab, be it alive or dead, or None where there is none; raises SiteError if it is unreadable."""
    file = folder(name) / RECORD
    try:
        fields = json.loads(file.read_text())
        hosts = tuple(Host(**host) for host in fields["hosts"])
        plan, unset = Plan(**fields["plan"]), tuple(fields["unset"])
        return Lab(**{**fields, "plan": plan, "hosts": hosts, "unset": unset})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        remedy = f"remove the folder {file.parent}, and the lab ends by itself"
        raise SiteError(f"{file} is not a record that this version can read; {remedy}") from error


def write(lab: Lab) -> None:
    """Write the record of a lab, whole or not at all."""
    place = folder(lab.name)
    fresh = place / f"{RECORD}.new"
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(asdict(lab)))
    fresh.rename(place / RECORD)


def remove(name: str) -> None:
    """Remove the lab's folder, and those above it that are ours and empty."""
    place = folder(name)
    shutil.rmtree(place)
    for above in (place.parent, place.parent.parent):
        with contextlib.suppress(OSError):  # another lab's folder is in it
            above.rmdir()


def end(supervisor: Host) -> None:
    """End a lab and wait until the kernel has taken away every process of it; nothing happens to a dead one."""
    try:
        handle = os.pidfd_open(supervisor.pid)
    except ProcessLookupError:
        return
    try:
        if supervisor.alive:  # asked after the handle was taken: it is this very process
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            if not select.select([handle], [], [], END_SECONDS)[0]:
                raise SiteError(f"the supervisor of the lab, process {supervisor.pid}, does not end; try again later")
    finally:
        os.close(handle)


def _take(place: Path, wait: Callable[[], None]) -> int | None:
    """Lock a folder; None where its holder removed it, or another took its place, before the lock was ours."""
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        wait()
        fcntl.flock(handle, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        if place.stat().st_ino == os.fstat(handle).st_ino:
            return handle
    os.close(handle)
    return None


def _make_private(place: Path) -> None:
    """Make the folders of a lab; raises SiteError where somebody else's is in the way."""
    for each in (place.parent.parent, place.parent, place):
        try:
            each.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise SiteError(f"{each}: {error.strerror}; set XDG_RUNTIME_DIR to a folder of yours") from error
        if not _is_ours(each) or each.stat().st_mode & 0o077:
            raise SiteError(f"{each} is not private to you; remove it, or set XDG_RUNTIME_DIR to a folder of yours")


def _is_ours(place: Path) -> bool:
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
