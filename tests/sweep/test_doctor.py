"""`sweep doctor` on machines that restrict: real limits, a real cpuset, a kernel that gives no namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.plan import Nic, Node
from sweep.doctor import RDMA_LOCKED_BYTES, Finding, _locked
from sweep.lab_trial import refusal

SWEEP = str(Path(sys.executable).with_name("sweep"))
PORT = "/sys/class/infiniband/mlx5_0/ports/1"
INFINIBAND = f"mount -t tmpfs none /sys/class && mkdir -p {PORT} && echo InfiniBand > {PORT}/link_layer"
"""In a mount namespace of its own: /sys/class as a machine with an InfiniBand port has it."""


def doctor(folder: Path, *before: str) -> tuple[int, dict[str, Finding]]:
    """`sweep doctor` behind other commands: its exit code, and its findings by what was looked for."""
    done = subprocess.run(
        [*before, SWEEP, "doctor", "-f", "json", "--archive", str(folder / "archive")],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout, done.stderr
    found = [Finding(**each) for each in json.loads(done.stdout)]
    return done.returncode, {each.what: each for each in found}


def in_namespaces(script: str) -> tuple[str, ...]:
    return ("unshare", "-Urm", "sh", "-c", f'{script} && exec "$@"', "sh")


def test_too_little_locked_memory_is_broken_where_there_is_infiniband(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, *in_namespaces(f"{INFINIBAND} && ulimit -l 64"))
    assert code == 3
    assert found["locked memory"].state == "broken"
    assert found["locked memory"].found == "64KiB is too little for RDMA over mlx5_0:1"
    assert "ulimit -l unlimited" in found["locked memory"].remedy
    assert "memlock unlimited` in /etc/security/limits.conf" in found["locked memory"].remedy


def test_too_little_locked_memory_is_no_trouble_without_infiniband(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, *in_namespaces("mount -t tmpfs none /sys/class && ulimit -l 64"))
    assert code == 0
    assert found["locked memory"] == Finding("ok", "locked memory", "64KiB")


@pytest.mark.parametrize(
    ("limit", "state"),
    [("unlimited", "ok"), (str(RDMA_LOCKED_BYTES), "ok"), (str(8 << 20), "broken"), ("0", "broken")],
)
def test_the_limit_that_rdma_needs(limit: str, state: str) -> None:
    node = Node("n", nics=(Nic("mlx5_0:1", "infiniband"),), facts={"memlock_bytes": limit})
    assert _locked(node).state == state


def test_a_cpuset_smaller_than_the_node_is_said_with_its_remedy(tmp_path: Path) -> None:
    total = os.cpu_count() or 1
    if total == 1:
        pytest.skip("a machine of one CPU has no smaller part; root cannot change that")
    cpu = str(min(os.sched_getaffinity(0)))
    _, found = doctor(tmp_path, "taskset", "-c", cpu)
    assert (found["CPUs"].state, found["CPUs"].found) == ("missing", f"1 of {total} may be used")
    assert "--exclusive" in found["CPUs"].remedy


def test_a_kernel_that_gives_no_namespaces_is_said_with_its_remedy(tmp_path: Path) -> None:
    _, found = doctor(tmp_path, *in_namespaces("echo 0 > /proc/sys/user/max_user_namespaces"))
    assert (found["sweep lab"].state, found["sweep lab"].remedy) == ("ok", ""), "root of its namespace needs no other"
    none = "for kind in user mnt net; do echo 0 > /proc/sys/user/max_${kind}_namespaces; done"
    _, found = doctor(tmp_path, *in_namespaces(none))
    assert found["sweep lab"].state == "missing"
    assert found["sweep lab"].found.startswith("the kernel gives no more namespaces")
    assert found["sweep lab"].remedy == "as root: sysctl user.max_user_namespaces=10000"


def test_a_machine_that_can_hold_a_lab_is_said_so_and_nothing_is_left_of_the_trial() -> None:
    before = Path("/proc/self/ns/user").readlink(), Path("/proc/self/ns/mnt").readlink()
    assert refusal() is None
    assert (Path("/proc/self/ns/user").readlink(), Path("/proc/self/ns/mnt").readlink()) == before
