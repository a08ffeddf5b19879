"""A fabric in a box, for real: these tests need root or user namespaces, and fail with the reason where neither is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.errors import InputError, SiteError
from sweep import lab, lab_cli, lab_namespaces, lab_state

ROOT = Path(__file__).parent.parent.parent
PROBE = str(Path(__file__).parent / "lab_probe.py")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder of our own, so that nobody's labs are touched; no lab of ours outlives the tests."""
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder
        for name in lab_state.names():
            lab.down(name)
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def net(runtime: Path) -> lab.Lab:
    """Three hosts with two NICs each, without Ray."""
    return lab.up(3, 2, "400mbit", "net", ray=False)


def output(name: str, host: str, *argv: str) -> str:
    """What a command on a host prints."""
    done = subprocess.run(lab.command(name, host, argv), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def soon(what: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether something becomes true before we lose patience."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@contextlib.contextmanager
def running(name: str, host: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A command on a host, killed at the end."""
    with subprocess.Popen(lab.command(name, host, argv), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a command prints."""
    assert process.stdout is not None
    return process.stdout.readline()


@contextlib.contextmanager
def receiver(name: str, host: str, address: str) -> Iterator[None]:
    """A TCP receiver on an address of a host."""
    with running(name, host, sys.executable, PROBE, "receive", address) as process:
        assert said(process) == "ready\n"
        yield


def rate_to(name: str, host: str, address: str, size: int = 2_000_000) -> float:
    """bit/s at which a host sends to an address that has a receiver."""
    return float(output(name, host, sys.executable, PROBE, "send", address, str(size)))


def carrying(marker: str) -> set[int]:
    """Processes with this word in their environment, whoever's namespace they are in."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError, NotADirectoryError):
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    return found


def namespaces() -> set[str]:
    """Every namespace that any process is in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found.add(str(link.readlink()))
    return found


def test_every_host_has_a_hostname_of_its_own(net: lab.Lab) -> None:
    names = [
        output("net", host.name, sys.executable, "-c", "import socket; print(socket.gethostname())")
        for host in net.hosts
    ]
    assert names == ["switch\n", "head\n", "node1\n", "node2\n", "node3\n"]


@pytest.mark.parametrize("device", ["mgmt", "nic0", "nic1"])
def test_hosts_reach_each_other_on_every_rail(net: lab.Lab, device: str) -> None:
    for host in ("node1", "node2"):
        found = net.host(host)
        assert found is not None
        with receiver("net", host, found.addresses[device]):
            others = {"node1", "node2", "node3"} - {host}
            assert all(rate_to("net", other, found.addresses[device], 1000) > 0 for other in others)


def test_hosts_know_each_other_by_name(net: lab.Lab) -> None:
    ask = "import socket; print(*map(socket.gethostbyname, ['head', 'node3', 'node3-nic1', 'switch']))"
    assert output("net", "node1", sys.executable, "-c", ask) == "10.77.0.250 10.77.0.3 10.77.2.3 10.77.0.254\n"


def test_a_host_sees_its_own_devices_alone(net: lab.Lab) -> None:
    assert all(host.own_sys for host in net.hosts)
    look = "import os; print(*sorted(os.listdir('/sys/class/net'))); print(open('/proc/net/dev').read())"
    seen, table = output("net", "node2", sys.executable, "-c", look).split("\n", 1)
    assert seen.split() == ["lo", "mgmt", "nic0", "nic1"]
    assert [line.split(":")[0].strip() for line in table.splitlines() if ":" in line] == seen.split()
    assert output("net", "head", "ls", "/sys/class/net").split() == ["lo", "mgmt"]


def test_a_host_is_a_machine_of_its_own_to_whoever_looks_for_shared_memory(net: lab.Lab) -> None:
    boot_ids = {output("net", host, "cat", "/proc/sys/kernel/random/boot_id") for host in ("node1", "node2", "node3")}
    assert len(boot_ids | {Path("/proc/sys/kernel/random/boot_id").read_text()}) == 4
    output("net", "node1", "touch", "/dev/shm/mine", "/run/mine")
    assert output("net", "node2", "ls", "/dev/shm", "/run").split().count("mine") == 0
    assert not Path("/dev/shm/mine").exists()


def test_a_host_sees_its_own_processes_alone(net: lab.Lab) -> None:
    look = (
        "import pathlib; print('sleep\\n' in [file.read_text() for file in pathlib.Path('/proc').glob('[1-9]*/comm')])"
    )
    with running("net", "node1", "sleep", "1000"):
        assert soon(lambda: output("net", "node1", sys.executable, "-c", look) == "True\n")
        assert output("net", "node2", sys.executable, "-c", look) == "False\n"


def test_nothing_crosses_a_wire_unasked(runtime: Path) -> None:
    lab.up(2, 1, "1gbit", "quiet", ray=False)
    time.sleep(1.5)
    for host in ("node1", "node2"):
        rows = [line.split() for line in output("quiet", host, "cat", "/proc/net/dev").splitlines() if "nic0" in line]
        assert [(row[1], row[9]) for row in rows] == [("0", "0")]
    assert lab.down("quiet")


def test_a_nic_of_a_quarter_of_the_rate_takes_four_times_as_long(net: lab.Lab) -> None:
    lab.set_rate("net", "node2", "nic0", "80mbit")
    lab.set_rate("net", "node2", "nic1", "20mbit")
    with receiver("net", "node1", "10.77.1.1"), receiver("net", "node1", "10.77.2.1"):
        ratios = [rate_to("net", "node2", "10.77.1.1") / rate_to("net", "node2", "10.77.2.1") for _ in range(3)]
    for nic in ("nic0", "nic1"):
        lab.set_rate("net", "node2", nic, "400mbit")
    assert 2.5 < sorted(ratios)[1] < 6


def test_a_pulled_cable_takes_the_carrier_and_a_plugged_one_brings_it_back(net: lab.Lab) -> None:
    def carrier() -> str:
        return output("net", "node3", "cat", "/sys/class/net/nic0/carrier", "/sys/class/net/nic1/carrier")

    def reached() -> bool:
        send = [sys.executable, PROBE, "send", "10.77.1.3", "1"]
        return subprocess.run(lab.command("net", "node1", send), capture_output=True).returncode == 0

    with receiver("net", "node3", "10.77.1.3"):
        lab.link("net", "node3", "nic0", up=False)
        assert carrier() == "0\n1\n"
        assert not reached()
        lab.link("net", "node3", "nic0", up=True)
        assert carrier() == "1\n1\n"
        assert soon(reached)
    lab.link("net", "node3", up=False)
    assert carrier() == "0\n0\n"
    lab.link("net", "node3", up=True)


def test_a_command_in_a_lab_sees_the_current_directory_and_exits_as_it_does_outside(
    net: lab.Lab, tmp_path: Path
) -> None:
    (tmp_path / "here").write_text("mine")
    line = lab.command("net", "head", ["sh", "-c", 'cat here; echo "$SWEEP_LAB $SWEEP_LAB_NODE"; exit 7'])
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "minenet head\n")
    assert subprocess.run(lab.command("net", "head", ["sh", "-c", "kill -9 $$"])).returncode == 128 + signal.SIGKILL
    missing = subprocess.run(lab.command("net", "head", ["no-such-program"]), capture_output=True, text=True)
    assert (missing.returncode, len(missing.stderr.splitlines())) == (3, 1)


def test_a_command_in_a_lab_gets_its_starters_signals_once(net: lab.Lab) -> None:
    count = (
        "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: print('one', flush=True)); "
        "print('ready', flush=True); sys.stdin.read()"
    )
    line = lab.command("net", "node1", [sys.executable, "-c", count])
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0) as process:
        assert said(process) == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert said(process) == "one\n"
        rest, _ = process.communicate(timeout=20)
    assert rest == ""


def test_a_command_in_a_lab_ends_with_its_starter(net: lab.Lab) -> None:
    with running("net", "node1", "sh", "-c", "echo $$; exec sleep 1000") as process:
        inside = f"/proc/{said(process).strip()}"
        process.kill()
        assert soon(lambda: lab.run("net", ["test", "-e", inside], "node1") == 1)


def test_up_twice_finds_the_same_lab(net: lab.Lab) -> None:
    lines: list[str] = []
    assert lab.up(3, 2, "0.4gbit", "net", ray=False, tell=lines.append) == lab_state.read("net")
    assert lines == ["already up: 3 nodes with 2 NICs at 400mbit, without Ray"]


@pytest.mark.parametrize(("nodes", "nics", "rate"), [(2, 2, "400mbit"), (3, 1, "400mbit"), (3, 2, "1gbit")])
def test_up_in_another_shape_says_how_to_end_the_one_there(net: lab.Lab, nodes: int, nics: int, rate: str) -> None:
    with pytest.raises(InputError, match="sweep lab down --name net"):
        lab.up(nodes, nics, rate, "net", ray=False)
    assert lab.status("net").state == "up"


def test_two_labs_stand_side_by_side(net: lab.Lab) -> None:
    lab.up(2, 1, "10mbit", "beside", ray=False)
    assert set(lab.labs()) == {"beside", "net"}
    assert output("beside", "node1", "ls", "/sys/class/net").split() == ["lo", "mgmt", "nic0"]
    with receiver("beside", "node1", "10.77.1.1"), receiver("net", "node1", "10.77.1.1"):
        assert rate_to("beside", "node2", "10.77.1.1") < 0.5 * rate_to("net", "node2", "10.77.1.1")
    assert lab.down("beside")
    assert not lab.down("beside")
    assert lab.labs() == ["net"]


def test_the_machine_sees_nothing_of_a_lab(runtime: Path) -> None:
    def mounts() -> set[str]:
        return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}

    hosts, before = Path("/etc/hosts").read_text(), mounts()
    lab.up(1, 1, "100mbit", "unseen", ray=False)
    assert not {"/run", "/run/lab/cgroup", "/etc/hosts", "/proc/sys/kernel/random/boot_id"} & (mounts() - before)
    assert not [device for device in Path("/sys/class/net").iterdir() if device.name.startswith(("node1", "br-nic"))]
    assert Path("/etc/hosts").read_text() == hosts
    assert lab.down("unseen")


def test_sigkill_of_the_supervisor_leaves_nothing(runtime: Path) -> None:
    built = lab.up(3, 2, "400mbit", "killed", ray=False)
    theirs = {str(link.readlink()) for host in built.hosts for link in Path(f"/proc/{host.pid}/ns").iterdir()}
    theirs -= {str(link.readlink()) for link in Path("/proc/self/ns").iterdir()}
    assert len([space for space in theirs if space.startswith("net:")]) == 5
    marker = f"LAB_TEST={os.getpid()}-killed"
    stay = f"export {marker}; setsid sleep 1000 & setsid setsid sleep 1000 & sleep 1000"
    with running("killed", "node1", "sh", "-c", stay) as process:
        assert soon(lambda: len(carrying(marker)) == 3)
        assert len(carrying("SWEEP_LAB=killed")) >= 5 + 4
        os.kill(built.hosts[0].pid, signal.SIGKILL)
        assert process.wait(timeout=20) == 128 + signal.SIGKILL
    assert soon(lambda: not carrying("SWEEP_LAB=killed"))
    assert soon(lambda: not namespaces() & theirs)
    assert soon(lambda: lab.status("killed").state == "down")
    assert not lab.down("killed")


def test_a_dead_lab_is_built_anew(runtime: Path) -> None:
    first = lab.up(1, 1, "100mbit", "anew", ray=False)
    os.kill(first.hosts[0].pid, signal.SIGKILL)
    assert soon(lambda: not first.alive)
    second = lab.up(2, 1, "100mbit", "anew", ray=False)
    assert second.alive
    assert lab.down("anew")


def test_a_lab_whose_starter_is_killed_ends_by_itself(runtime: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import os; from sweep import lab; "
        "lab.up(2, 1, '100mbit', 'orphan', ray=False, tell=lambda _: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert soon(lambda: not carrying("SWEEP_LAB=orphan") and lab.status("orphan").state == "down")
    assert not lab.down("orphan")


def test_a_lab_holds_nothing_open_that_its_starter_had_open(runtime: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from sweep import lab; "
        "lab.up(1, 1, '100mbit', 'tidy', ray=False)"
    )
    reader, writer = os.pipe()
    assert subprocess.run([sys.executable, "-c", code], pass_fds=[writer]).returncode == 0
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert lab.down("tidy")


def test_a_lab_whose_record_is_taken_away_ends_by_itself(runtime: Path) -> None:
    built = lab.up(1, 1, "100mbit", "forgotten", ray=False)
    lab_state.remove("forgotten")
    assert soon(lambda: not built.alive)


def test_two_ups_at_the_same_time_build_one_lab(runtime: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from sweep import lab; "
        "print(lab.up(2, 1, '100mbit', 'race', ray=False).hosts[0].pid)"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    pids = {process.communicate(timeout=60)[0] for process in both}
    assert len(pids) == 1
    assert lab.down("race")


def test_a_host_whose_first_process_is_killed_is_gone_and_the_others_stay(runtime: Path) -> None:
    lab.up(2, 1, "100mbit", "crash", ray=False)
    os.kill(lab.pids("crash", "node2")[0], signal.SIGKILL)
    gone = soon(lambda: [host.alive for host in lab.status("crash").hosts] == [True, True, True, False])
    assert gone, lab.status("crash")
    with pytest.raises(SiteError, match="node2"):
        lab.command("crash", "node2", ["true"])
    assert lab.run("crash", ["true"], "node1") == 0
    assert lab.down("crash")


def test_what_is_not_there_is_said_in_one_line(net: lab.Lab) -> None:
    with pytest.raises(SiteError, match="sweep lab up --name none"):
        lab.run("none", ["true"])
    with pytest.raises(InputError, match="switch, head, node1, node2, node3"):
        lab.command("net", "node4", ["true"])
    with pytest.raises(InputError, match="mgmt, nic0, nic1"):
        lab.link("net", "node1", "nic2", up=False)
    with pytest.raises(SiteError, match="--no-ray"):
        lab.sweep_command("net", "spec.toml", [])


def test_a_shape_that_does_not_fit_leaves_nothing(runtime: Path) -> None:
    with pytest.raises(SiteError, match="ask for"):
        lab.up(200, 1, "100mbit", "huge", ray=True)
    assert not lab_state.folder("huge").exists()


def test_another_system_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SiteError, match="not Linux"):
        lab.up(1, 1, "100mbit", "other", ray=False)


def be_root_of_a_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    lab_namespaces.unshare(lab_namespaces.USER | lab_namespaces.MOUNT)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def give_no_namespaces() -> None:
    Path("/proc/sys/user/max_net_namespaces").write_text("0")


def hide_a_part_of_proc() -> None:
    lab_namespaces.mount("tmpfs", "/proc/fs", "tmpfs")


@pytest.mark.parametrize(
    ("hinder", "message"),
    [(give_no_namespaces, "no more namespaces"), (hide_a_part_of_proc, "systempaths=unconfined")],
)
def test_a_machine_that_cannot_hold_a_lab_is_refused_in_one_line(
    runtime: Path, hinder: Callable[[], None], message: str
) -> None:
    def in_a_poor_machine() -> None:
        be_root_of_a_namespace()
        hinder()
        be_root_of_a_namespace()  # what the outer one did cannot be undone in here

    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from sweep import lab\n"
        "try: lab.up(1, 1, '100mbit', 'poor', ray=False)\n"
        "except lab.SiteError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=in_a_poor_machine, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert message in done.stdout
    assert not lab_state.folder("poor").exists()


def open_to_all(aside: Path, *needed: Path) -> None:
    """Show these folders to every user, in this process' mount namespace alone: CI often lives below /root."""
    lab_namespaces.unshare(lab_namespaces.MOUNT)
    lab_namespaces.mount("none", "/", "", lab_namespaces.MS_REC | (1 << 18))
    closed = {path: [above for above in path.parents if not above.stat().st_mode & 0o001] for path in needed}
    lab_namespaces.mount("tmpfs", str(aside), "tmpfs")
    shut = [path for path in needed if closed[path]]
    for number, path in enumerate(shut):
        (aside / str(number)).mkdir()
        lab_namespaces.mount(str(path), str(aside / str(number)), "", lab_namespaces.MS_BIND | lab_namespaces.MS_REC)
    for above in {closed[path][-1] for path in shut}:
        lab_namespaces.mount("tmpfs", str(above), "tmpfs", 0, "mode=755")
    for number, path in enumerate(shut):
        path.mkdir(parents=True, exist_ok=True)
        lab_namespaces.mount(str(aside / str(number)), str(path), "", lab_namespaces.MS_MOVE)


def test_an_ordinary_user_can_build_use_and_end_a_lab(tmp_path_factory: pytest.TempPathFactory) -> None:
    aside = tmp_path_factory.mktemp("aside")

    def as_nobody() -> None:
        open_to_all(aside, Path(sys.base_prefix), Path(sys.prefix), ROOT)
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)

    code = f"""
import json, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from sweep import lab
built = lab.up(2, 1, "100mbit", "nobody", ray=False)
seen = [subprocess.check_output(lab.command("nobody", host.name, ["hostname"]), text=True) for host in built.hosts]
pids = {{host.name: len(lab.pids("nobody", host.name)) for host in built.hosts}}
lab.link("nobody", "node2", "nic0", up=False)
carrier = subprocess.check_output(lab.command("nobody", "node2", ["cat", "/sys/class/net/nic0/carrier"]), text=True)
print(json.dumps([seen, pids, carrier, lab.down("nobody"), lab.status("nobody").state, lab.labs()]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=as_nobody if os.geteuid() == 0 else None,
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen, pids, carrier, ended, state, left = json.loads(done.stdout)
    assert seen == ["switch\n", "head\n", "node1\n", "node2\n"]
    assert pids == {"switch": 1, "head": 1, "node1": 1, "node2": 1}
    assert (carrier, ended, state, left) == ("0\n", True, "down", [])
    assert soon(lambda: not carrying("SWEEP_LAB=nobody"))


def test_the_command_line_builds_shows_and_ends_a_lab(runtime: Path) -> None:
    cli = CliRunner()
    done = cli.invoke(
        lab_cli.app, ["up", "--nodes", "1", "--nics", "1", "--rate", "10mbit", "--no-ray", "--name", "cli"]
    )
    assert done.exit_code == 0
    assert "sweep lab down --name cli" in done.stderr
    assert "node1" in cli.invoke(lab_cli.app, ["status", "--name", "cli"]).stdout
    found = json.loads(cli.invoke(lab_cli.app, ["status", "--name", "cli", "--format", "json"]).stdout)
    assert (found[0]["state"], [host["name"] for host in found[0]["hosts"]]) == ("up", ["switch", "head", "node1"])
    assert "has ended" in cli.invoke(lab_cli.app, ["down", "--name", "cli"]).stderr
    assert "no lab" in cli.invoke(lab_cli.app, ["down", "--name", "cli"]).stderr
    assert "is down" in cli.invoke(lab_cli.app, ["status", "--name", "cli"]).stdout


@pytest.mark.parametrize("command", ["up", "down", "status", "run", "shell"])
def test_every_command_explains_itself(command: str) -> None:
    done = CliRunner().invoke(lab_cli.app, [command, "--help"])
    assert done.exit_code == 0
    assert "--name" in done.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_every_host_is_a_ray_node_with_its_own_address_and_hostname(runtime: Path) -> None:
    built = lab.up(2, 1, "400mbit", "ray")
    driver = """
import json, os, socket, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
where = ray.remote(num_cpus=0)(lambda: [socket.gethostname(), os.getpriority(os.PRIO_PROCESS, 0)])
ran = {node["NodeManagerAddress"]: where.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote()
       for node in ray.nodes() if node["Alive"]}
print(json.dumps({address: ray.get(reference, timeout=60) for address, reference in ran.items()}))
"""
    assert built.address == "10.77.0.250:6379"
    ran = json.loads(output("ray", "head", sys.executable, "-c", driver).splitlines()[-1])
    assert ran == {"10.77.0.250": ["head", 0], "10.77.0.1": ["node1", 0], "10.77.0.2": ["node2", 0]}
    os.kill(built.hosts[0].pid, signal.SIGKILL)
    assert soon(lambda: not carrying("SWEEP_LAB=ray") and not built.alive)
    assert not lab.down("ray")
