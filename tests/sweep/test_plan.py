"""`sweep plan`: what a run would do, the same for the same seed, under names that never change."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from archive.where import keep
from schemas.plan import Inventory, Node, Plan, Tool
from sweep.expand import expand, point_id
from sweep.inventory import from_toml
from sweep.load import load
from tests.house import House

ROOT = Path(__file__).parents[2]

SPEC = """
name = "plan"
where = "NOT (operation = 'pingpong' AND ranks_per_node > 2)"
[factors]
benchmark = ["imb.pingpong", "imb.allreduce"]
message_size = "4:4M"
ranks_per_node = [2, 4]
nodes = [1, 3]
sharp = ["off", "on"]
imb.iterations = [100, 1000]
env.UCX_TLS = ["tcp", "sm"]
[run]
repeats = 2
seed = 7
[launch]
env = { API_TOKEN = "hunter2", UCX_LOG_LEVEL = "warn" }
"""

CLUSTER = """
cluster = "c"
sharp = false
[[nodes]]
name = "n1"
[stacks.default]
flavour = "mpich"
[stacks.default.tools.mpiexec]
path = "/opt/mpich/bin/mpiexec"
[stacks.default.tools.IMB-MPI1]
path = "/opt/imb/IMB-MPI1"
"""


@pytest.fixture
def planned(house: House) -> House:
    """A working directory with a spec and what a cluster has."""
    house.write("spec.toml", SPEC)
    house.write("cluster.toml", CLUSTER)
    return house


def document(house: House, *words: str) -> Any:
    done = house.sweep("plan", "spec.toml", "--inventory", "cluster.toml", "-f", "json", *words)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_a_plan_counts_trials_points_launches_and_what_is_saved(planned: House) -> None:
    done = planned.sweep("plan", "spec.toml", "--inventory", "cluster.toml")
    assert done.code == 0, done.err
    head, *rest = done.out.splitlines()
    assert head == "plan on c: 96 trials for 1008 points × 2 repeats"
    assert rest[0] == "  launches   24, 480 saved by measuring several message sizes in one"
    assert rest[1] == "  excluded   336 points by `where`"
    assert re.fullmatch(r"  time       about .+", rest[2])
    assert rest[3:5] == ["  nodes      1: n1", "  coverage   n1: 24 launches"]
    assert re.fullmatch(r"  node-hours about ([0-9.e-]+) used, \1 held", rest[5])
    assert rest[6] == "  order      shuffled, pairs sharp"
    assert re.search(r"^imb.allreduce  4\.\.4M +16 +336  ", done.out, re.MULTILINE)


def test_a_plan_says_what_is_unsupported_how_often_and_why(planned: House) -> None:
    done = planned.sweep("plan", "spec.toml", "--inventory", "cluster.toml")
    reasons = dict(re.findall(r"^  (\d+) trials, e\.g\. imb\.\w+ .*: (.*)$", done.out, re.MULTILINE))
    assert reasons == {"48": "needs 3 nodes, c has 1", "24": "no SHARP library was found on the nodes"}


def test_a_plan_as_json_is_the_whole_plan_in_the_order_of_execution(planned: House) -> None:
    whole = document(planned)
    assert {name: whole[name] for name in ("name", "cluster", "seed", "points", "excluded", "launches_saved")} == {
        "name": "plan",
        "cluster": "c",
        "seed": 7,
        "points": 1008,
        "excluded": 336,
        "launches_saved": 480,
    }
    trials = whole["trials"]
    assert len(trials) == 96
    assert len({trial["trial_id"] for trial in trials}) == 96
    assert [trial["block"] for trial in trials] == sorted(trial["block"] for trial in trials)
    assert len({point for trial in trials for point in trial["point_ids"]}) == 1008
    assert all(len(trial["sizes"]) == len(trial["point_ids"]) == 21 for trial in trials)
    launched = [trial for trial in trials if trial["unsupported"] is None]
    assert len(launched) == 24
    assert sum(trial["estimate_s"] for trial in launched) == pytest.approx(whole["estimate_s"])
    assert {trial["factors"]["env.UCX_TLS"] for trial in launched} == {"tcp", "sm"}
    assert {trial["parameters"]["iterations"] for trial in launched} == {100, 1000}


def test_a_plan_keeps_secrets_to_itself(planned: House) -> None:
    assert "hunter2" not in json.dumps(document(planned))
    assert document(planned)["trials"][0]["setup"]["env"]["UCX_LOG_LEVEL"] == "warn"


def test_the_same_seed_makes_the_same_plan_and_another_one_another_order_of_the_same_trials(planned: House) -> None:
    first = document(planned)["trials"]
    assert document(planned)["trials"] == first
    planned.write("spec.toml", SPEC.replace("seed = 7", "seed = 8"))
    second = document(planned)["trials"]
    assert [trial["trial_id"] for trial in first] != [trial["trial_id"] for trial in second]
    assert {trial["trial_id"] for trial in first} == {trial["trial_id"] for trial in second}


def test_a_plan_as_csv_and_markdown_has_a_line_per_trial(planned: House) -> None:
    done = planned.sweep("plan", "spec.toml", "--inventory", "cluster.toml", "-f", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["trial_id"] for row in rows] == [trial["trial_id"] for trial in document(planned)["trials"]]
    assert rows[0]["sizes"] == "4..4M"
    done = planned.sweep("plan", "spec.toml", "--inventory", "cluster.toml", "-f", "markdown")
    assert len(done.out.splitlines()) == 96 + 2


def test_what_an_inventory_says_of_a_cluster_plans_anywhere(house: House) -> None:
    house.write("spec.toml", '[factors]\nbenchmark = "command.run"\ncommand.argv = "ls"\nnics = [1, 64]\n')
    told = house.sweep("inventory")
    assert told.code == 0, told.err
    house.write("cluster.toml", told.out)
    assert tomllib.loads(told.out)["cluster"] == "local"
    assert from_toml(house.folder / "cluster.toml").nodes is not None
    here = house.sweep("plan", "spec.toml", "-f", "json")
    there = house.sweep("plan", "spec.toml", "--inventory", "cluster.toml", "-f", "json", env={"PATH": "/nowhere"})
    assert here.code == 0, here.err
    assert json.loads(here.out) == json.loads(there.out)


def test_nothing_but_a_name_plans_with_what_is_unknown_left_open(planned: House) -> None:
    planned.write("cluster.toml", 'cluster = "far"\n')
    whole = document(planned)
    assert whole["cluster"] == "far"
    assert not [trial for trial in whole["trials"] if trial["unsupported"] and "SHARP library" in trial["unsupported"]]
    assert "nodes      unknown here" in planned.sweep("plan", "spec.toml", "--inventory", "cluster.toml").out


def test_every_example_loads_and_plans(house: House) -> None:
    examples = sorted((ROOT / "examples").glob("*.toml"))
    assert examples
    for path in examples:
        done = house.sweep("plan", path)
        assert done.code == 0, done.err


GOLDEN = """
name = "{name}"
description = "names, descriptions, tags and the order are in no identity"
tags = ["{name}"]
[factors]
message_size = [0, 4, "1M"]
nodes = 1
ranks_per_node = 2
benchmark = ["imb.allreduce", "mpi4py.pingpong", "command.run", "imb.barrier"]
sharp = "off"
stack = "mpich"
env.UCX_TLS = "tcp"
imb.iterations = 200
imb.warmup = true
command.argv = "/bin/echo {{message_size}}"
command.match.bandwidth = "([0-9]+)"
[run]
seed = {seed}
[launch]
args = ["--bind-to", "core"]
env = {{ OMP_NUM_THREADS = "1" }}
[levels.stack.mpich]
path = ["/opt/mpich/bin"]
[levels.sharp.off]
env = {{ SHARP_COLL_ENABLE_SAT = "0" }}
"""


def golden(house: House, name: str = "one", seed: int = 1) -> Plan:
    house.write("golden.toml", GOLDEN.format(name=name, seed=seed))
    spec = load(house.folder / "golden.toml", environ={"HOME": "/nowhere"})
    tools = {name: Tool(name, f"/opt/bin/{name}", "mpi4py 4.1") for name in ("mpiexec", "IMB-MPI1", "python3")}
    have = Inventory(nodes=(Node("n1"),), tools={"mpich": tools}, flavours={"mpich": "mpich"}, sharp=False)
    return expand(spec, have, keep, seed)


def identities(plan: Plan) -> list[str]:
    """A line per question, launch and setup."""
    lines = set()
    for trial in plan.trials:
        combination = trial.combination
        assert trial.unsupported is None or "0 is none" in trial.unsupported
        what = f"{combination.benchmark}.{combination.operation}"
        lines.add(f"setup {combination.benchmark}: {combination.setup.setup_id}")
        lines.add(f"trial {what} {trial.sizes}: {trial.trial_id}")
        lines |= {f"point {what} {size}: {point_id(combination, size)}" for size in trial.sizes}
    return sorted(lines)


def test_identities_never_change(house: House) -> None:
    """History hangs on these: whoever changes one cuts every archive in two. Setups change with `revision` alone."""
    assert identities(golden(house)) == (Path(__file__).parent / "identities.txt").read_text().splitlines()


def test_names_and_seeds_are_in_no_identity(house: House) -> None:
    assert identities(golden(house, "two", 2)) == identities(golden(house))
