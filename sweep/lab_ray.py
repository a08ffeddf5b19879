"""The Ray cluster of a lab: a head for drivers, and one node per host with an address of its own."""

from __future__ import annotations

import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import SiteError
from sweep import lab_state
from sweep.lab_plan import HEAD, HEAD_NUMBER, MANAGEMENT, SITE_FILE, Plan, address
from sweep.lab_start import Tell, finish, in_host
from sweep.lab_state import Lab

PORT = 6379
NODE_BYTES = 250_000_000
"""Memory that a Ray node takes when idle, with what it needs to start."""
OBJECT_STORE_BYTES = 128 * 1024 * 1024
START_SECONDS = 120

_FOREIGN = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR", "RAY_JOB_ID")


def environment(plan: Plan) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables that every process of a lab gets, and those that it does not inherit from the machine."""
    common = {"SWEEP_LAB": plan.name, "SWEEP_SITE": SITE_FILE, "TMPDIR": "/run/tmp", "XDG_RUNTIME_DIR": "/run/user"}
    ray = {
        "RAY_ADDRESS": f"{address(MANAGEMENT, HEAD_NUMBER)}:{PORT}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }
    return (common | ray if plan.ray else common), _FOREIGN


def require(plan: Plan) -> None:
    """Raise SiteError where this machine cannot run that many Ray nodes."""
    if find_spec("ray") is None:
        raise SiteError("a lab with Ray needs the package ray; install it, or build the lab with --no-ray")
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    fitting = free // NODE_BYTES - 1
    if fitting < plan.nodes:
        raise SiteError(
            f"{plan.nodes} Ray nodes and a head do not fit into the {free / 1e9:.1f} GB of memory that are free; "
            f"ask for {max(fitting, 0)} nodes at most, or for --no-ray"
        )


def start(lab: Lab, tell: Tell) -> None:
    """Start the head, then a node on every host; each has joined when its start returns. Raises SiteError."""
    for host in lab.plan.hosts:
        tell(f"starting Ray on {host}")
        log = lab_state.folder(lab.name) / f"ray-{host}.log"
        code = finish(in_host(lab.name, host, _command(lab, host)), log, START_SECONDS)
        if code != 0:
            why = f"took longer than {START_SECONDS} s" if code is None else f"ended with exit code {code}"
            last = " | ".join(
                line.strip() for line in log.read_text(errors="replace").splitlines()[-5:] if line.strip()
            )
            raise SiteError(f"starting Ray on host {host!r} {why}: {last}")


def _command(lab: Lab, host: str) -> list[str]:
    """`ray start` in a folder of the host's own, with everything explicit that Ray would otherwise guess."""
    own = lab.plan.addresses(host)[MANAGEMENT]
    options = {
        "node-ip-address": own,
        "node-manager-port": "6380",
        "object-manager-port": "6381",
        "object-store-memory": str(OBJECT_STORE_BYTES),
    }
    if host == HEAD:
        options |= {"port": str(PORT), "num-cpus": "0", "temp-dir": "/run/ray", "include-dashboard": "false"}
    else:
        options |= {"address": str(lab.address), "num-cpus": str(len(os.sched_getaffinity(0)))}
    words = [f"--{name}={value}" for name, value in options.items()]
    kind = ["--head"] if host == HEAD else []
    ray = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *kind, "--disable-usage-stats", *words]
    return ["/bin/sh", "-c", 'cd /run/tmp && exec "$@"', "sh", *ray]
