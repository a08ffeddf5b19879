"""Launchers: flavours by what they say, argument vectors, libraries, and the real mpiexecs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.attempt import Asked, Launch, Process, Role
from schemas.errors import SiteError
from schemas.plan import Node, Tool
from schemas.spec import Container, Way
from tasks.launchers import flavour, merge, processes

ROOT = Path(__file__).parent.parent.parent
STACKS = {"intelmpi": Path(sys.executable).parent, "mpich": ROOT / ".stacks" / "mpich" / "bin"}

SAID = {
    "mpich": "HYDRA build details:\n    Version:        5.0.2\n    Configure options:   --with-device=ch4",
    "mvapich": "HYDRA build details:\n    Version:   3.0\n    Configure options:    --prefix=/opt/mvapich/3.0",
    "intelmpi": "Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626 (id: b44796a)",
    "openmpi4": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "openmpi5": "mpiexec (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/",
    "unknown": "mpiexec version 1.0 of somebody else",
}
NODES = (Node("node01", cpus=4),)
RANKS = Role("ranks", ("IMB-MPI1", "PingPong"), ranks=2, env={"OWN": "1"})
ASKED = Asked("imb", "pingpong")


def started(
    *roles: Role,
    way: Way = Way(),
    launcher: str = "mpiexec",
    mpiexec: str | None = "/nowhere/bin/mpiexec",
    of: str | None = "mpich",
    nodes: tuple[Node, ...] = NODES,
) -> tuple[Process, ...]:
    tool = None if mpiexec is None else Tool("mpiexec", mpiexec, SAID.get(of or "", ""))
    return processes(Launch(roles, ASKED), way, launcher=launcher, mpiexec=tool, flavour=of, nodes=nodes)


@pytest.mark.parametrize("name", SAID)
def test_a_flavour_is_known_by_what_its_mpiexec_says(name: str) -> None:
    assert flavour(SAID[name]) == name


def test_nothing_said_is_unknown() -> None:
    assert flavour("") == "unknown"


def test_debians_open_mpi_calls_itself_openrte() -> None:
    assert flavour("mpirun.openmpi (OpenRTE) 4.1.4") == "openmpi4"


@pytest.mark.parametrize("stack", STACKS)
def test_the_real_mpiexecs_are_known(stack: str) -> None:
    mpiexec = STACKS[stack] / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}")
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=True).stdout
    assert flavour(said) == stack


@pytest.mark.parametrize("of", ["mpich", "intelmpi", "mvapich"])
def test_hydra_takes_the_sites_arguments_before_the_program(of: str) -> None:
    (process,) = started(RANKS, way=Way(args=("-bind-to", "numa")), of=of)
    assert process.argv == ("/nowhere/bin/mpiexec", "-bind-to", "numa", "-n", "2", "IMB-MPI1", "PingPong")
    assert (process.role, process.node) == ("ranks", 0)


@pytest.mark.parametrize(
    ("of", "crowded"), [("openmpi4", ("--oversubscribe",)), ("openmpi5", ("--map-by", ":OVERSUBSCRIBE"))]
)
def test_open_mpi_is_told_of_root_and_of_more_ranks_than_cpus(of: str, crowded: tuple[str, ...]) -> None:
    """Oversubscribing unbinds the ranks, so only where it must."""
    head, tail = ("/nowhere/bin/mpiexec", "--allow-run-as-root"), ("-n", "2", "IMB-MPI1", "PingPong")
    assert started(RANKS, of=of)[0].argv == (*head, *tail)
    assert started(RANKS, of=of, nodes=(Node("node01"),))[0].argv == (*head, *tail)
    assert started(RANKS, of=of, nodes=(Node("node01", cpus=1),))[0].argv == (*head, *crowded, *tail)


@pytest.mark.parametrize("own", ["--map-by", "-map-by", "--oversubscribe", "--hostfile"])
def test_a_site_that_maps_ranks_itself_is_left_alone(own: str) -> None:
    (process,) = started(RANKS, way=Way(args=(own, "x")), of="openmpi5", nodes=(Node("node01", cpus=1),))
    assert ":OVERSUBSCRIBE" not in process.argv


def test_a_role_without_ranks_is_a_plain_process_on_each_of_its_nodes() -> None:
    way = Way(setup=("module load x",), path=("/opt/x/bin",), env={"A": "1", "OWN": "0"}, args=("-ignored",))
    server = Role("server", ("iperf3", "-s"), nodes=(0, 1), env={"OWN": "1"}, ready="listening")
    client = Role("client", ("iperf3", "-c"), nodes=(1,))
    made = started(server, client, way=way, mpiexec=None, of=None)
    assert [(each.role, each.node) for each in made] == [("server", 0), ("server", 1), ("client", 1)]
    assert made[0] == Process(
        "server", 0, ("iperf3", "-s"), {"A": "1", "OWN": "1"}, ("/opt/x/bin",), ("module load x",), "listening"
    )


def test_without_a_launcher_one_rank_is_a_plain_process() -> None:
    (process,) = started(Role("ranks", ("prog",), ranks=1), launcher="none", mpiexec=None, of=None)
    assert process.argv == ("prog",)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"mpiexec": None}, "mpiexec was not found"),
        ({"of": "unknown"}, "is of no flavour we know (its --version says 'mpiexec version 1.0 of somebody else')"),
        ({"of": None}, "is of no flavour we know"),
        ({"launcher": "none"}, "launcher 'none' starts no ranks, and ranks asks for 2"),
        ({"launcher": "torchrun"}, "launcher 'torchrun' starts no ranks"),
        ({"way": Way(launcher="none")}, "launcher 'none' starts no ranks"),
        ({"way": Way(container=Container("pyxis", "x"))}, "container (pyxis) is not yet supported"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_line(what: dict[str, object], said: str) -> None:
    with pytest.raises(SiteError) as caught:
        started(RANKS, **what)  # type: ignore[arg-type]  # each case gives other keywords
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("of", "phrases"),
    [
        ("mpich", ["-launcher-exec {files}/agent", "-hosts node01,10.0.0.2 -ppn 2", "-n 4 x"]),
        ("intelmpi", ["-bootstrap-exec {files}/agent", "-hosts node01,10.0.0.2 -ppn 2", "-n 4 x"]),
        ("openmpi5", ["plm_ssh_agent {files}/agent", "--host node01:2,10.0.0.2:2", "-n 4 -x A"]),
        ("openmpi4", ["plm_rsh_agent {files}/agent", "--host node01:2,10.0.0.2:2", "-n 4 -x A"]),
    ],
)
def test_ranks_on_several_nodes_are_reached_by_the_agent(of: str, phrases: list[str]) -> None:
    role = Role("ranks", ("x",), ranks=4, nodes=(0, 1), env={"A": "1"})
    nodes = (Node("node01", cpus=8), Node("node02.example", "10.0.0.2", cpus=8))
    (process,) = started(role, nodes=nodes, of=of)
    for phrase in phrases:
        assert phrase in " ".join(process.argv)
    assert process.env["SWEEP_SELF"].split(",")[0] == "node01"
    assert any("SLURM_" in line for line in process.setup), "inside an allocation Open MPI would call srun"


def stack(folder: Path, library: str = "libmpi.so.12") -> str:
    (folder / "bin").mkdir()
    (folder / "lib").mkdir()
    (folder / "bin" / "mpiexec").touch()
    (folder / "lib" / library).touch()
    return str(folder / "bin" / "mpiexec")


def test_the_library_of_an_mpiexec_is_found_first_and_what_the_user_has_stays(tmp_path: Path) -> None:
    mpiexec = stack(tmp_path)
    (process,) = started(RANKS, mpiexec=mpiexec, way=Way(setup=("module load x",), env={"LD_LIBRARY_PATH": "/site"}))
    assert process.setup[1:] == (
        "module load x",
        f"export LD_LIBRARY_PATH={tmp_path}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
    )
    (process,) = started(RANKS, mpiexec=mpiexec, way=Way(env={"LD_LIBRARY_PATH": "/site"}))
    assert process.setup[1:] == (f"export LD_LIBRARY_PATH={tmp_path}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",)
    assert process.env["LD_LIBRARY_PATH"] == "/site"


def test_the_exported_path_is_right_whether_the_user_has_one_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (process,) = started(RANKS, mpiexec=stack(folder))
    for before, after in (({}, f"{folder}/lib"), ({"LD_LIBRARY_PATH": "/mine"}, f"{folder}/lib:/mine")):
        script = "\n".join([*process.setup, "echo $LD_LIBRARY_PATH"])
        env = {"PATH": os.environ["PATH"], **before}
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == after


def test_a_link_to_an_mpiexec_leads_to_its_library(tmp_path: Path) -> None:
    real, links = tmp_path / "mpi", tmp_path / "links" / "bin"
    real.mkdir()
    links.mkdir(parents=True)
    (links / "mpiexec").symlink_to(stack(real))
    (process,) = started(RANKS, mpiexec=str(links / "mpiexec"))
    assert str(real / "lib") in process.setup[1]


def test_a_prefix_without_an_mpi_library_and_those_of_the_system_are_left_alone(tmp_path: Path) -> None:
    for mpiexec in (stack(tmp_path, "libother.so"), "/usr/bin/mpiexec", "/usr/local/bin/mpiexec"):
        assert not any("LD_LIBRARY_PATH" in line for line in started(RANKS, mpiexec=mpiexec)[0].setup)


@pytest.mark.parametrize("nodes", [(0,), (0, 1)])
def test_an_mpiexec_never_learns_that_it_runs_inside_an_allocation(nodes: tuple[int, ...]) -> None:
    """Else it starts its ranks through srun, on the nodes of the allocation instead of those of the trial."""
    role = Role("ranks", ("x",), ranks=2, nodes=nodes)
    (process,) = started(role, nodes=(Node("node01"), Node("node02")), of="mpich")
    script = "\n".join([*process.setup, "env"])
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "PMIX_RANK": "0", "KEPT": "1"}
    said = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    assert "KEPT=1" in said
    assert "SLURM" not in said
    assert "PMIX" not in said


@pytest.mark.parametrize(
    ("of", "args", "wanted"),
    [
        ("mpich", (), ["--mpi=pmi2"]),
        ("openmpi5", (), ["--mpi=pmix"]),
        ("openmpi5", ("--mpi=pmix_v4",), ["--mpi=pmix_v4"]),
        (None, (), []),
    ],
)
def test_srun_starts_one_step_over_the_nodes_of_the_trial(
    of: str | None, args: tuple[str, ...], wanted: list[str]
) -> None:
    role = Role("ranks", ("x", "y"), ranks=4, nodes=(0, 1))
    nodes = (Node("node01"), Node("node02.example"))
    (process,) = started(role, nodes=nodes, of=of, launcher="srun", way=Way(args=args), mpiexec=None)
    assert process.argv[0] == "srun"
    assert {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--nodelist=node01,node02"} < set(process.argv)
    assert [word for word in process.argv if word.startswith("--mpi")] == wanted
    assert process.argv[-2:] == ("x", "y")
    script = "\n".join([*process.setup, "env"])
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", "SLURM_NNODES": "1", "PMIX_RANK": "0"}
    said = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    assert [line for line in said.splitlines() if line.startswith(("SLURM", "PMI"))] == ["SLURM_JOB_ID=1"]


def test_a_later_way_wins_and_its_folders_come_first() -> None:
    site = Way(("a",), ("/site",), {"X": "1", "Y": "1"}, ("--site",), None, "mpiexec")
    level = Way(("b",), ("/level", "/site"), {"Y": "2"}, ("--level",), Container("docker", "x"))
    assert merge(site, level) == Way(
        ("a", "b"),
        ("/level", "/site"),
        {"X": "1", "Y": "2"},
        ("--site", "--level"),
        Container("docker", "x"),
        "mpiexec",
    )
    assert merge() == Way()


@pytest.mark.parametrize("of", STACKS)
def test_the_environment_of_the_site_and_of_the_role_reaches_every_rank(of: str) -> None:
    mpiexec = STACKS[of] / "mpiexec"
    if not mpiexec.exists():
        pytest.skip(f"no {mpiexec}")
    role = Role("ranks", ("bash", "-c", 'echo "$SITE|$OWN|${LD_LIBRARY_PATH%%:*}"'), ranks=2, env={"OWN": "o n e"})
    (process,) = started(role, way=Way(env={"SITE": "s"}), mpiexec=str(mpiexec), of=of)
    script = "\n".join([*process.setup, 'exec "$@"'])
    done = subprocess.run(
        ["bash", "-c", script, "run", *process.argv],
        env={**os.environ, **process.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [f"s|o n e|{mpiexec.parent.parent}/lib"] * 2
