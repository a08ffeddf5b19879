"""Building a lab: start its supervisor, hear from it what is there, start Ray; all of it or nothing."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from schemas.errors import SiteError
from sweep import lab_ray, lab_state
from sweep.lab_namespaces import start_time
from sweep.lab_plan import SWITCH, Plan
from sweep.lab_start import Tell, program
from sweep.lab_state import Host, Lab
from sweep.lab_supervisor import KEEP
from sweep.lab_trouble import explain

SILENCE_SECONDS = 60
UCRED = "iII"
"""struct ucred of <sys/socket.h>: pid, uid, gid."""


def build(plan: Plan, folder: Path, tell: Tell) -> Lab:
    """Build a lab and leave its record in the folder; raises SiteError, and then nothing is left of it."""
    hosts: list[Host] = []
    try:
        if plan.ray:
            lab_ray.require(plan)
        return _build(plan, folder, tell, hosts)
    except BaseException:
        for supervisor in hosts[:1]:  # one from which nothing was heard yet ends by itself, its socket being closed
            lab_state.end(supervisor)
        lab_state.remove(plan.name)
        raise


def _build(plan: Plan, folder: Path, tell: Tell, hosts: list[Host]) -> Lab:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            _start_supervisor(plan, folder, ours, theirs)
        _hear(ours, plan, hosts)
        lab = Lab(plan, tuple(hosts), *lab_ray.environment(plan), time.time(), ready=False)
        lab_state.write(lab)
        tell(f"built {plan}")
        if plan.ray:
            lab_ray.start(lab, tell)
        lab = replace(lab, ready=True)
        lab_state.write(lab)
        ours.send(KEEP)
    return lab


def _start_supervisor(plan: Plan, folder: Path, ours: socket.socket, theirs: socket.socket) -> None:
    """Start the supervisor in a session of its own and tell it what to build."""
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.settimeout(SILENCE_SECONDS)
    ours.send(json.dumps({"plan": asdict(plan), "folder": str(folder)}).encode())
    line = program("sweep.lab_supervisor", str(theirs.fileno()))
    environment = os.environ | {"SWEEP_LAB": plan.name}
    with (folder / "supervisor.log").open("wb") as log, Path(os.devnull).open("rb") as nothing:
        theirs.set_inheritable(True)
        streams = [
            (os.POSIX_SPAWN_DUP2, nothing.fileno(), 0),
            *((os.POSIX_SPAWN_DUP2, log.fileno(), n) for n in (1, 2)),
        ]
        pid = os.posix_spawn(line[0], line, environment, file_actions=streams, setsid=True, setsigmask=())
    os.waitpid(pid, 0)


def _hear(channel: socket.socket, plan: Plan, hosts: list[Host]) -> None:
    """Gather the hosts as each reports itself, in the plan's order at last; raises SiteError when one fails."""
    order = [SWITCH, *plan.hosts]
    built = False
    while not (built and len(hosts) == len(order)):
        event, pid = _receive(channel)
        if "failed" in event:
            raise SiteError(explain(event["failed"], event["errno"], event["text"]))
        built = built or "built" in event
        if "host" in event:
            name, started = event["host"], start_time(pid)
            if started is None:
                raise SiteError(f"host {name!r} of the lab ended while the lab was being built; try again")
            hosts.append(Host(name, pid, started, plan.addresses(name), own_sys=event["own_sys"]))
    hosts.sort(key=lambda host: order.index(host.name))


def _receive(channel: socket.socket) -> tuple[dict[str, Any], int]:
    """Receive one event, and the pid of its sender as it is known to us: the kernel translates it."""
    try:
        data, extra, _, _ = channel.recvmsg(1 << 16, socket.CMSG_SPACE(struct.calcsize(UCRED)))
    except TimeoutError as error:
        raise SiteError(f"the supervisor of the lab said nothing for {SILENCE_SECONDS} s; try again") from error
    if not data:
        raise SiteError("the supervisor of the lab ended before the lab was up")
    event: dict[str, Any] = json.loads(data)
    return event, struct.unpack(UCRED, extra[0][2])[0]
