"""Nodes reached by ssh, without Ray: a real sshd on each host of a lab, real MPI, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sweep import lab
from tests import inlab
from tests.house import Done, House, finished, soon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd becomes other users: only root can"),
]

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
        return inlab.start(house, self.name, "head", [inlab.SWEEP, *words], self.env)

    def sweep(self, house: House, *words: object) -> Done:
        """Type it, to its end."""
        return finished(self.start(house, *words))

    @property
    def env(self) -> dict[str, str]:
        """Our ssh comes before the system's, and calls it with keys and hosts of its own."""
        return {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def serving(self, node: str) -> bool:
        """Whether a node's sshd lets us in."""
        line = lab.command(self.name, "head", [f"{self.folder}/bin/ssh", node, "true"])
        return subprocess.run(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    def left(self, name: str = "sweep-node-part") -> list[str]:
        """Nodes on which a process of that name lives, once for each."""
        return sorted(host for host, _ in inlab.processes(self.name, ("node1", "node2"), name))


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
    assert fabric.left() == []


def test_every_node_of_the_gang_counts_its_traffic(house: House, fabric: Fabric) -> None:
    factors = 'benchmark = "imb.pingpong"\nmessage_size = [1048576]\nnodes = 2\nnics = 2\nstack = "mpich"'
    run(house, fabric, house.spec(f"{factors}\nimb.iterations = 10", ONCE, SITE))
    [(traffic, names)] = house.sql("SELECT traffic, nic_set FROM attempts")
    moved = {(each["node"], each["nic"]): each["tx_bytes"] for each in traffic}
    assert names == ["node1 nic0", "node1 nic1", "node2 nic0", "node2 nic1"]
    for node in ("node1", "node2"):
        assert moved[node, "nic0"] + moved[node, "nic1"] > 10 * 1048576
    assert house.sql("SELECT nics_observed FROM results") == [(2,)]


def test_a_killed_driver_leaves_nothing_on_any_host(house: House, fabric: Fabric) -> None:
    """Neither what the launcher started on the other node, nor what left its session, nor the attempt's folder."""
    argv = "bash -c '(setsid sleep 6543 &) ; exec sleep 6543'"
    factors = f'nodes = 2\nstack = "mpich"\ncommand.launcher = "mpiexec"\ncommand.argv = "{argv}"'.replace("\\'", "'")
    process = fabric.start(house, "run", house.spec(factors, ONCE, SITE), "--hosts", fabric.folder / "hosts")
    assert soon(lambda: fabric.left("sleep 6543") == ["node1", "node1", "node2", "node2"], 40.0)
    assert fabric.left() == ["node1", "node2"]
    folder = inlab.attempt_folder(fabric.name, "node1")
    assert folder.is_dir()
    os.kill(inlab.driver(house), signal.SIGKILL)
    process.wait()
    assert soon(lambda: not fabric.left("sleep 6543") and not fabric.left(), 20.0)
    assert not folder.exists()


def test_an_interrupted_run_kills_everywhere_and_resumes(house: House, fabric: Fabric) -> None:
    factors = 'nodes = 2\nstack = "mpich"\ncommand.launcher = "mpiexec"\ncommand.argv = "sleep 6542"'
    process = fabric.start(house, "run", house.spec(factors, ONCE, SITE), "--hosts", fabric.folder / "hosts")
    assert soon(lambda: fabric.left("sleep 6542") == ["node1", "node2"], 40.0)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    done = finished(process)
    assert done.code == 130, done.err
    assert not fabric.left("sleep 6542")
    assert house.sql("SELECT outcome FROM attempts") == [("cancelled",)]


def test_a_connection_that_dies_is_entered_anew_and_the_trial_tried_again(house: House, fabric: Fabric) -> None:
    factors = 'nodes = 2\nstack = "mpich"\ncommand.launcher = "mpiexec"\ncommand.argv = "sleep 3"'
    again = 'timeout = 60\nretry = { attempts = 2, wait = "0s..1s" }'
    process = fabric.start(house, "run", house.spec(factors, again, SITE), "--hosts", fabric.folder / "hosts")
    assert soon(lambda: fabric.left("sleep 3") == ["node1", "node2"], 40.0)
    for _, pid in inlab.processes(fabric.name, ["node1"], "sshd: root@notty"):
        os.kill(pid, signal.SIGKILL)
    done = finished(process)
    assert done.code == 0, done.err
    assert house.sql("SELECT outcome FROM attempts ORDER BY start") == [("lost",), ("ok",)]


def test_a_node_that_is_cut_off_is_lost_and_the_run_stops_resumable(house: House, fabric: Fabric) -> None:
    """Its launcher would have waited for it until the time-out."""
    factors = 'nodes = 2\nstack = "mpich"\ncommand.launcher = "mpiexec"\ncommand.argv = "sleep 654"'
    spec = house.spec(factors, ONCE.replace("60", "600"), SITE)
    process = fabric.start(house, "run", spec, "--hosts", fabric.folder / "hosts")
    assert soon(lambda: fabric.left("sleep 654") == ["node1", "node2"], 40.0)
    lab.link(fabric.name, "node2", up=False)
    try:
        done = finished(process)
    finally:
        lab.link(fabric.name, "node2", up=True)
    assert done.code == 3, done.err
    assert "node2 cannot be entered" in done.err or "the connection to node2 ended" in done.err
    assert "go on with: sweep resume" in done.err
    assert house.sql("SELECT outcome FROM attempts") == [("lost",)]
    assert "node1" not in fabric.left("sleep 654")
    for _, pid in inlab.processes(fabric.name, ["node2"], "sshd: root@notty"):
        os.kill(pid, signal.SIGKILL)  # it would notice by itself: TCP asks again in two hours
    assert soon(lambda: not fabric.left("sleep 654") and not fabric.left(), 20.0)


def test_a_command_for_a_host_outside_the_gang_is_refused(house: House, fabric: Fabric) -> None:
    """A rank calls the agent, as a launcher would."""
    house.write(
        "steal",
        "#!/bin/sh\n[ $PMI_RANK = 0 ] || exit 0\n"
        "cd /tmp/sweep-attempt-$SWEEP_ATTEMPT\n./agent head hostname 2>&1 | sed s/^/said:/\n",
    )
    factors = f'nodes = 2\nstack = "mpich"\ncommand.launcher = "mpiexec"\ncommand.argv = "{house.folder}/steal"'
    run(house, fabric, house.spec(factors, ONCE, SITE))
    [(text,)] = house.sql("SELECT text FROM outputs WHERE stream = 'stdout'")
    assert text.strip() == "said:sweep agent: head is no node of this attempt"


@pytest.mark.parametrize(
    ("hosts", "code", "said"),
    [
        ("node1\nnode9\n", 3, r"sweep: node9 cannot be entered: ssh: Could not resolve hostname node9"),
        ("node1\n10.77.0.1\n", 3, "sweep: node1 and 10.77.0.1 are the same node, node1; name it once"),
        ("node1\nnode 2\n", 2, "sweep: .*hosts:2: `node 2` names no host; write one host a line: "),
        ("# none\n", 2, "sweep: .*hosts: names no host; write one host a line: "),
    ],
)
def test_hosts_that_cannot_be_had_are_named_in_one_line(
    house: House, fabric: Fabric, hosts: str, code: int, said: str
) -> None:
    spec = house.spec('command.argv = "hostname"', ONCE, SITE)
    done = fabric.sweep(house, "run", spec, "--hosts", house.write("hosts", hosts))
    assert done.code == code
    assert re.search(f"^{said}", done.lines[-1]), done.err
    assert "Traceback" not in done.err


def test_without_a_hostfile_and_an_allocation_no_hosts_are_known(house: House, fabric: Fabric) -> None:
    done = fabric.sweep(house, "run", house.spec('command.argv = "hostname"', ONCE, SITE))
    assert done.code == 3
    assert done.lines[-1].startswith("sweep: no hosts are known; give --hosts FILE")


def test_a_hostfile_for_another_reach_is_refused(house: House, fabric: Fabric) -> None:
    spec = house.spec('command.argv = "hostname"', ONCE)
    done = fabric.sweep(house, "run", spec, "--executor", "inline", "--hosts", fabric.folder / "hosts")
    assert done.code == 2
    assert '--hosts: goes with reach = "ssh" or "srun"' in done.err


def test_the_inventory_tells_what_every_host_has(house: House, fabric: Fabric) -> None:
    site = house.write("site.toml", SITE)
    done = fabric.sweep(house, "inventory", "--site", site, "--hosts", fabric.folder / "hosts")
    assert done.code == 0, done.err
    assert re.findall(r'name = "(node\d)"', done.out) == ["node1", "node2"]
