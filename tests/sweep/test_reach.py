"""Nodes reached by ssh, without Ray: a real sshd on each host of a lab, real MPI, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sweep import lab
from tests.house import Done, House, finished, soon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = f"""
[launch]
reach = "ssh"
[levels.stack.impi]
path = ["{ROOT}/.venv/bin"]
env = {{ I_MPI_FABRICS = "ofi", FI_PROVIDER = "tcp" }}
[levels.stack.mpich]
path = ["{ROOT}/.stacks/mpich/bin", "{ROOT}/.venv/bin"]
env = {{ UCX_TLS = "tcp,self" }}
"""
ONCE = 'timeout = 60\nretry = { attempts = 1, wait = "1s..2s" }'
SSHD = """\
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
PidFile none
"""
SSH = """\
#!/bin/sh
exec /usr/bin/ssh -F {folder}/config "$@"
"""
CONFIG = """\
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known
StrictHostKeyChecking yes
"""


@dataclass(frozen=True, slots=True)
class Fabric:
    """A lab with an sshd on each node, and whatever a client needs to come in."""

    name: str
    folder: Path

    def start(self, house: House, *words: object) -> subprocess.Popen[str]:
        """Type `sweep WORDS` on the head, where ssh finds its keys."""
        mark, _, value = house.mark.partition("=")
        process = subprocess.Popen(
            lab.command(self.name, "head", [str(Path(sys.executable).with_name("sweep")), *map(str, words)]),
            env={
                **os.environ,
                mark: value,
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "SWEEP_ARCHIVE": str(house.archive),
                "COLUMNS": "200",
            },
            cwd=house.folder,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        house.started.append(process)
        return process

    def sweep(self, house: House, *words: object) -> Done:
        """Type it, to its end."""
        return finished(self.start(house, *words))

    def serving(self, node: str) -> bool:
        """Whether a node's sshd lets us in."""
        line = lab.command(self.name, "head", [f"{self.folder}/bin/ssh", node, "true"])
        return subprocess.run(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def named(self, name: str) -> list[str]:
        """Hosts of the lab on which a process of that name lives, once for each."""
        return [
            host
            for host in ("head", "node1", "node2")
            for pid in lab.pids(self.name, host)
            if words(pid).startswith(name)
        ]


def words(pid: int) -> str:
    """A process's command line, or the name that it gave itself."""
    try:
        return (Path(f"/proc/{pid}/cmdline").read_text() or "").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def node_parts(fabric: Fabric) -> list[str]:
    """Hosts with a node part."""
    found = []
    for host in ("node1", "node2"):
        for pid in lab.pids(fabric.name, host):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found += [host] if name == "sweep-node-part" else []
    return found


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    folder = tmp_path_factory.mktemp("ssh")
    (folder / "bin").mkdir()
    for name in ("user", "host"):
        subprocess.run(["ssh-keygen", "-q", "-N", "", "-t", "ed25519", "-f", folder / name], check=True)
    (folder / "sshd_config").write_text(SSHD.format(folder=folder))
    (folder / "config").write_text(CONFIG.format(folder=folder))
    (folder / "known").write_text(f"* {(folder / 'host.pub').read_text()}")
    (folder / "bin" / "ssh").write_text(SSH.format(folder=folder))
    (folder / "bin" / "ssh").chmod(0o755)
    here = Fabric(f"ssh{os.getpid()}", folder)
    lab.up(nodes=2, nics=2, rate="400mbit", name=here.name, ray=False)
    serve = f"mkdir -p /run/sshd && exec /usr/sbin/sshd -D -f {folder}/sshd_config -E {folder}/log"
    servers = [subprocess.Popen(lab.command(here.name, node, ["sh", "-c", serve])) for node in ("node1", "node2")]
    try:
        assert all(soon(lambda node=node: here.serving(node), 20.0) for node in ("node1", "node2"))  # type: ignore[misc]  # bound at once
        (folder / "hosts").write_text("# the nodes of the lab\nnode1 slots=2\nnode2:2\n")
        yield here
    finally:
        lab.down(here.name)
        for server in servers:
            server.wait()


def run(house: House, fabric: Fabric, spec: Path, code: int = 0) -> None:
    done = fabric.sweep(house, "run", spec, "--hosts", fabric.folder / "hosts")
    assert done.code == code, done.err


def test_ranks_run_on_two_nodes_under_mpich_and_intel_mpi(house: House, fabric: Fabric) -> None:
    factors = 'benchmark = "imb.allreduce"\nmessage_size = [1024, 65536]\nnodes = [1, 2]\nimb.iterations = 10'
    run(house, fabric, house.spec(f'{factors}\nstack = ["mpich", "impi"]\nranks_per_node = 2', ONCE, SITE))
    found = house.sql('SELECT stack, nodes, outcome, node_names, "left" FROM attempts ORDER BY ALL')
    assert found == [
        (stack, nodes, "ok", ["node1", "node2"][:nodes], []) for stack in ("impi", "mpich") for nodes in (1, 2)
    ]
    assert house.sql("SELECT count(DISTINCT (stack, nodes, message_size)) FROM results WHERE time > 0") == [(8,)]
    assert house.sql("SELECT node, address FROM nodes ORDER BY ALL") == [("node1", "10.77.0.1"), ("node2", "10.77.0.2")]
    assert node_parts(fabric) == []


def test_every_node_of_the_gang_counts_its_traffic(house: House, fabric: Fabric) -> None:
    factors = 'benchmark = "imb.pingpong"\nmessage_size = [1048576]\nnodes = 2\nnics = 2\nstack = "mpich"'
    run(house, fabric, house.spec(f"{factors}\nimb.iterations = 10", ONCE, SITE))
    [(traffic, names)] = house.sql("SELECT traffic, nic_set FROM attempts")
    moved = {(each["node"], each["nic"]): each["tx_bytes"] for each in traffic}
    assert names == ["node1 nic0", "node1 nic1", "node2 nic0", "node2 nic1"]
    for node in ("node1", "node2"):
        assert moved[node, "nic0"] + moved[node, "nic1"] > 10 * 1048576
    assert house.sql("SELECT nics_observed FROM results") == [(2,)]
