"""A spec and its site are read whole: what is right arrives in canonical form, what is wrong is said, all at once."""

from __future__ import annotations

import copy
import datetime as dt
import os
import string
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InputError, Problem
from schemas.spec import Quarantine, Repeats, Retry, RunPolicy, Site, Spec, Way
from sweep.load import load, reload
from sweep.site import load_site
from sweep.table import words
from tasks.benchmarks import Benchmark, Operation, Parameter

ROOT = Path(__file__).parents[2]

QUESTION = """
name = "allreduce-nics"
description = "Does a second NIC pay off, and from which size on?"
tags = ["acceptance"]
where = "NOT (sharp = 'on' AND nodes < 3)"   # SQL over the factors, evaluated by DuckDB, sandboxed

[factors]                       # a list is an axis of the grid, a scalar is one level
benchmark      = "imb.allreduce"             # module.operation; the tool's own spelling works too
message_size   = "1:4M"                      # 1, 2, 4 … 4 MiB. Also "8:1G:x4", "0,64:1K:+64", [8, 4096]
nodes          = "2:4"                       # the same ranges for every numeric factor
ranks_per_node = 1
nics           = [1, 2]                      # counts; which NICs is the site's policy
sharp          = ["off", "on"]               # true/false mean the same
placement      = "first"                     # first | random | cover | pairs | compact | spread
env.NCCL_ALGO  = ["Ring", "Tree"]            # any environment variable may be a factor, quoted or not
imb.iterations = 200                         # any parameter that the benchmark declares may be one

[[include]]                                  # combinations outside the grid
nodes = 3
nics = 2

[run]
repeats = 3                                  # separate launches; or { min = 6, max = 12, until = "3%" }
pair = ["sharp", "nics"]                     # default: these two, where they have several levels
order = "shuffled"                           # seed recorded; "sorted" for humans
concurrency = "exclusive"                    # one trial at a time on the fabric
warmup = 0                                   # discarded launches per new set of nodes, archived as such
timeout = "auto"                             # from the cost model, or seconds
retry = { attempts = 4, wait = "2s..60s" }
quarantine = { failures = 3, window = 10 }
deadline = "auto"                            # the allocation's end, or a time, or a duration
counters = "edges"                           # NIC counters before and after; or a period: "100ms"
"""

CLUSTER = """
cluster = "ndv5-west"
archive = "az://fabric/archive"

[launch]
reach = "ray"
launcher = "mpiexec"            # flavour detected: MPICH/Hydra, Intel MPI, Open MPI/PRRTE, MVAPICH
args = ["--bind-to", "numa"]
env = { UCX_TLS = "tcp,self" }

[fabric]
nics = { link_layer = "infiniband" }         # selector or names, resolved per node: names differ between nodes
nic_policy = "spread"                        # which k of them: spread over PCIe/NUMA | first | rails:0,4
link_gbps = 400                              # default: read from sysfs

[levels.stack.hpcx]                          # any level of any factor may bring its way of running
setup = ["source /opt/hpcx/hpcx-init.sh", "hpcx_load"]   # bash, on every node, before exec "$@"
path = ["/opt/nccl-tests/build"]
[levels.stack.ngc]
container = { engine = "pyxis", image = "nvcr.io#nvidia/pytorch:26.10-py3", mounts = ["/data"] }
[levels.sharp.on]
env = { SHARP_COLL_ENABLE_SAT = "1" }
"""

MINIMAL = """
[factors]
benchmark = "imb.allreduce"
"""


def module(parameters: tuple[Parameter, ...], **tools: str) -> Benchmark:
    operations = {name: Operation(tool, "") for name, tool in tools.items()}
    return cast("Benchmark", SimpleNamespace(operations=operations, parameters=parameters))


class Shelf:
    """A catalogue of three benchmarks."""

    _modules: Mapping[str, Benchmark] = {
        "imb": module(
            (
                Parameter("iterations", int, 1000, "", minimum=1),
                Parameter("warmup", bool, True, ""),
                Parameter("memory", float, 8.0, "", minimum=0),
                Parameter("policy", str, "off", "", choices=("off", "auto")),
                Parameter("root_shift", int, 0, ""),
            ),
            allreduce="Allreduce",
            pingpong="PingPong",
        ),
        "osu": module((Parameter("iterations", int, 1000, ""),), allreduce="osu_allreduce", latency="osu_latency"),
        "command": module((Parameter("run", str, "", ""), Parameter("match", str, "", "", family=True)), run="run"),
    }

    def names(self) -> tuple[str, ...]:
        return tuple(self._modules)

    def get(self, name: str) -> Benchmark:
        return self._modules[name]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a home of its own, so that no site file of this machine is found."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str, site: str | None = None, **environ: str) -> Spec:
    Path("spec.toml").write_text(text)
    if site is not None:
        Path("site.toml").write_text(site)
    return load(Path("spec.toml"), environ={"HOME": str(Path.cwd() / "home"), **environ}, catalogue=Shelf())


def problems(text: str, site: str | None = None, **environ: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(text, site, **environ)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.problems), "one line per problem"
    return lines


def grid(**factors: object) -> str:
    return tomli_w.dumps({"factors": {"benchmark": "imb.allreduce", **factors}})


def refusal(text: str, site: str | None = None) -> str:
    (line,) = problems(text, site)
    return line


# --- the design's own examples ---


def without(text: str, *lines: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith(lines))


def test_the_question_of_the_design_arrives_whole() -> None:
    spec = read(without(QUESTION, "quarantine"))
    assert spec.name == "allreduce-nics"
    assert spec.description == "Does a second NIC pay off, and from which size on?"
    assert spec.tags == ("acceptance",)
    assert spec.where == "NOT (sharp = 'on' AND nodes < 3)"
    assert spec.factors == {
        "benchmark": ("imb.allreduce",),
        "message_size": tuple(2**power for power in range(23)),
        "nodes": (2, 4),
        "ranks_per_node": (1,),
        "nics": (1, 2),
        "sharp": ("off", "on"),
        "placement": ("first",),
        "env.NCCL_ALGO": ("Ring", "Tree"),
        "imb.iterations": (200,),
    }
    assert spec.include == ({"nodes": (3,), "nics": (2,)},)
    assert spec.run == RunPolicy(repeats=Repeats(3, 3), retry=Retry(4, 2.0, 60.0), quarantine=Quarantine(3, 10))
    assert spec.text == without(QUESTION, "quarantine")
    assert spec.source == str(Path.cwd() / "spec.toml")


def test_the_cluster_of_the_design_arrives_whole() -> None:
    site = read(MINIMAL, without(CLUSTER, "archive", "[levels.stack.ngc]", "container")).site
    assert (site.cluster, site.reach, site.launcher, site.archive) == ("ndv5-west", "ray", "mpiexec", None)
    assert site.way == Way(args=("--bind-to", "numa"), env={"UCX_TLS": "tcp,self"})
    assert site.fabric.nics == {"link_layer": "infiniband"}
    assert (site.fabric.nic_policy, site.fabric.link_gbps) == ("spread", 400.0)
    assert site.levels == {
        "stack": {
            "hpcx": Way(
                setup=("source /opt/hpcx/hpcx-init.sh", "hpcx_load"),
                path=("/opt/nccl-tests/build",),
            )
        },
        "sharp": {"on": Way(env={"SHARP_COLL_ENABLE_SAT": "1"})},
    }
    assert site.source == str(Path.cwd() / "site.toml")


def test_what_is_not_built_of_the_designs_examples_is_refused_with_not_yet_and_nothing_else_is() -> None:
    refused = problems(QUESTION, CLUSTER)
    assert all("not yet" in line for line in refused)
    assert [line.split(": ")[1] for line in refused] == ["run.quarantine", "archive", "levels.stack.ngc.container"]


def leaves(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every key of a document whose value is no table."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for name, each in items:
        nested = isinstance(each, dict) or (isinstance(each, list) and each and isinstance(each[0], dict))
        yield from leaves(each, (*key, name)) if nested else [(*key, name)]


def keys_of(text: str) -> list[tuple[str | int, ...]]:
    return list(leaves(tomllib.loads(text)))


def spoilt(text: str, key: tuple[str | int, ...]) -> str:
    """The same document with a value that no key takes: a time of day."""
    data = copy.deepcopy(tomllib.loads(text))
    node: Any = data
    for part in key[:-1]:
        node = node[part]
    node[key[-1]] = dt.time(7, 32)
    return tomli_w.dumps(data)


@pytest.mark.parametrize("key", keys_of(QUESTION), ids=str)
def test_no_key_of_the_designs_question_is_ignored(key: tuple[str | int, ...]) -> None:
    name = ".".join(map(str, key)).replace(".0.", "[0].")
    assert any(f": {name}: " in line and "unknown" not in line for line in problems(spoilt(QUESTION, key)))


@pytest.mark.parametrize("key", keys_of(CLUSTER), ids=str)
def test_no_key_of_the_designs_cluster_is_ignored(key: tuple[str | int, ...]) -> None:
    name = ".".join(map(str, key))
    found = problems(MINIMAL, spoilt(CLUSTER, key))
    # a variable and the table of it are one problem, said at the table
    assert any(f": {name}: " in line or f": {name.rpartition('.')[0]}: " in line for line in found)
    assert not any("unknown" in line for line in found)


# --- factors ---


def test_dotted_and_quoted_names_are_the_same_factor() -> None:
    dotted = read('[factors]\nbenchmark = "imb.allreduce"\nenv.NCCL_ALGO = ["Ring"]\nimb.iterations = 5\n')
    quoted = read('[factors]\nbenchmark = "imb.allreduce"\n"env.NCCL_ALGO" = ["Ring"]\n"imb.iterations" = 5\n')
    assert dotted.factors == quoted.factors
    assert dotted.factors["env.NCCL_ALGO"] == ("Ring",)


def test_a_factor_named_in_both_spellings_is_an_error() -> None:
    text = '[factors]\nbenchmark = "imb.allreduce"\nenv.A = "1"\n"env.A" = "2"\n'
    assert "`env.A` is given twice" in refusal(text)


@pytest.mark.parametrize("spelling", ["imb.allreduce", "imb.Allreduce"])
def test_the_tools_own_spelling_names_the_same_operation(spelling: str) -> None:
    assert read(grid(benchmark=spelling)).factors["benchmark"] == ("imb.allreduce",)


def test_a_module_with_one_operation_needs_no_more_than_its_name() -> None:
    assert read(grid(benchmark="command")).factors["benchmark"] == ("command.run",)


def test_several_benchmarks_take_their_own_parameters() -> None:
    spec = read(grid(benchmark=["imb.allreduce", "osu.latency"], imb={"iterations": 10}, osu={"iterations": 20}))
    assert spec.factors["imb.iterations"] == (10,)
    assert spec.factors["osu.iterations"] == (20,)


def test_sharp_is_off_or_on_however_it_is_written() -> None:
    assert read(grid(sharp=[False, True, "on"])).factors["sharp"] == ("off", "on")


def test_numeric_factors_take_every_notation() -> None:
    spec = read(grid(message_size=[8, 4096, "1M", "0,64:128:+64"], nodes="1:8:x8", ranks_per_node="1:3:+1", nics="1:2"))
    assert spec.factors["message_size"] == (8, 4096, 1048576, 0, 64, 128)
    assert (spec.factors["nodes"], spec.factors["ranks_per_node"]) == ((1, 8), (1, 2, 3))
    assert spec.factors["nics"] == (1, 2)


def test_levels_of_the_environment_are_texts_and_never_ranges() -> None:
    spec = read(grid(env={"A": [1, "1", 0.5, "1:4"]}))
    assert spec.factors["env.A"] == ("1", "0.5", "1:4")


def test_parameters_are_read_as_the_kind_that_the_benchmark_declares() -> None:
    given = {"iterations": "10:1K:x10", "warmup": [True, False], "memory": [1, 0.5], "policy": "auto"}
    spec = read(grid(imb={**given, "root_shift": [-1, 2]}))
    assert spec.factors["imb.iterations"] == (10, 100, 1000)
    assert spec.factors["imb.warmup"] == (True, False)
    assert spec.factors["imb.memory"] == (1.0, 0.5)
    assert all(isinstance(level, float) for level in spec.factors["imb.memory"])
    assert spec.factors["imb.policy"] == ("auto",)
    assert spec.factors["imb.root_shift"] == (-1, 2)


def test_a_family_of_parameters_takes_any_member() -> None:
    spec = read(grid(benchmark="command.run", command={"run": "train", "match": {"loss": "loss (.*)"}}))
    assert spec.factors["command.match.loss"] == ("loss (.*)",)


def test_a_factor_of_ones_own_is_known_by_its_levels_or_by_a_template_that_names_it() -> None:
    levels = {"levels": {"mode": {"fast": {"env": {"MODE": "fast"}}}}}
    spec = read(grid(mode=["fast", "slow"]) + tomli_w.dumps(levels))
    assert spec.factors["mode"] == ("fast", "slow")
    template = {"run": "train --batch {batch} --amp {amp}"}
    spec = read(grid(benchmark="command.run", command=template, batch=[32, "32x", 0.5], amp=[True, 1]))
    assert spec.factors["batch"] == (32, "32x", 0.5)
    assert [type(level) for level in spec.factors["amp"]] == [bool, int], "True and 1 are two levels"


def test_a_level_named_twice_counts_once() -> None:
    assert read(grid(nodes=[2, "2:4", 4])).factors["nodes"] == (2, 4)
    assert read(grid(stack=["a", "a"])).factors["stack"] == ("a",)


def test_an_include_takes_the_same_notations_and_may_name_another_benchmark() -> None:
    spec = read(
        MINIMAL
        + '[[include]]\nmessage_size = "1K:2K"\n[[include]]\nbenchmark = "osu.osu_latency"\nosu.iterations = 5\n'
    )
    assert spec.include == (
        {"message_size": (1024, 2048)},
        {"benchmark": ("osu.latency",), "osu.iterations": (5,)},
    )


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"benchmark": "ibm.allreduce"}, "unknown benchmark `ibm`; did you mean `imb`?"),
        ({"benchmark": "imb.allredcue"}, "unknown operation `allredcue` of `imb`; did you mean `imb.allreduce`?"),
        ({"benchmark": "imb"}, "`imb` has several operations; known: imb.allreduce, imb.pingpong"),
        ({"benchmark": 3}, 'write "module.operation"'),
        ({"benchmark": []}, "has no levels, so the grid is empty"),
        ({"nodes": []}, "has no levels, so the grid is empty"),
        ({"nodes": 0}, "0 is not allowed here; write a whole number from 1"),
        ({"nodes": True}, "true is not a whole number"),
        ({"nodes": 2**31}, "write a whole number from 1 to 2147483647"),
        ({"ranks_per_node": "two"}, "'two' is not a number"),
        ({"nics": [1, "mlx5_0:1"]}, "not yet"),
        ({"message_size": -8}, "-8 is negative"),
        ({"message_size": "4M:1"}, 'runs backwards; write "1:4M"'),
        ({"message_size": "1:9223372036854775808"}, "is too large"),
        ({"message_size": "0:1G:+1"}, "at most 10,000,000"),
        ({"message_size": ["1", [2]]}, "[2] is not a whole number"),
        ({"sharp": "maybe"}, 'write "off" or "on"'),
        ({"sharp": 1}, 'write "off" or "on"'),
        ({"placement": "furst"}, "did you mean `first`?"),
        ({"stack": 3}, "name a stack"),
        ({"stack": "default"}, "`default` is what no stack is called"),
        ({"operation": "allreduce"}, "name it with its benchmark"),
        ({"mesage_size": 8}, "unknown factor `mesage_size`; did you mean `message_size`?"),
        ({"batch": 8}, "a factor of your own needs a table [levels.batch.LEVEL]"),
        ({"iterations": 8}, "unknown factor `iterations`; write `imb.iterations`"),
        ({"repeats": 8}, "unknown factor `repeats`; it belongs under [run]"),
        ({"NCCL_ALGO": "Ring"}, "an environment variable is written `env.NCCL_ALGO`"),
        ({"imb": {"iteration": 8}}, "unknown parameter `iteration` of `imb`; did you mean `imb.iterations`?"),
        ({"imb": {"iterations": 0}}, "0 is not allowed here; at least 1"),
        ({"imb": {"iterations": "a"}}, "'a' is not a number"),
        ({"imb": {"iterations": 5.0}}, "5.0 is not a whole number"),
        ({"imb": {"warmup": 1}}, "write true or false"),
        ({"imb": {"memory": float("nan")}}, "write a finite number"),
        ({"imb": {"memory": -0.5}}, "at least 0"),
        ({"imb": {"policy": "of"}}, "did you mean `off`?"),
        ({"imb": {"policy": 3}}, "write a text in quotes"),
        ({"osu": {"iterations": 8}}, "no benchmark of this spec is of `osu`; add one to factors.benchmark"),
        ({"ibm": {"iterations": 8}}, "unknown factor `ibm.iterations`"),
        ({"env": {"A-B": "1"}}, "`A-B` is no name of an environment variable"),
        ({"env": {"A": True}}, 'write a text, such as env.A = "1"'),
        ({"env": {"SWEEP_ATTEMPT": "1"}}, "SWEEP_ATTEMPT is ours"),
        ({"env": {"A": "a\0b"}}, "is no value of an environment variable"),
    ],
)
def test_a_wrong_factor_is_refused_with_what_would_be_right(factors: dict[str, object], said: str) -> None:
    line = refusal(grid(**factors))
    assert said in line
    assert line.startswith("spec.toml:")
    assert ": factors." in line


def test_without_factors_or_benchmark_there_is_nothing_to_measure() -> None:
    assert "factors: is missing; write [factors]" in refusal('name = "x"\n')
    assert "factors.benchmark: is missing" in refusal("[factors]\nnodes = 1\n")
    assert "factors: 3 is not a table; write [factors]" in refusal("factors = 3\n")


def test_every_wrong_level_of_a_factor_is_reported() -> None:
    assert len(problems(grid(benchmark=["imb.x", "y.z"], nodes=[0, "a"], sharp=["x", "y"]))) == 6


@pytest.mark.parametrize("name", ["where", "name", "tags", "description", "run", "cluster", "levels"])
def test_what_slid_below_a_table_is_diagnosed_by_name(name: str) -> None:
    value = "repeats = 3" if name == "run" else f'{name} = "nodes > 2"'
    line = refusal(f'[factors]\nbenchmark = "imb.allreduce"\n{"run." if name == "run" else ""}{value}\n')
    assert line.startswith(f"spec.toml:3: factors.{name}: `{name}` stands under [factors]; move it above that line")
    if name not in ("run", "levels"):
        assert f"`{name}` stands under [run]; move it above" in refusal(f'{MINIMAL}[run]\n{name} = "x"\n')


def test_a_key_is_sent_to_the_table_where_it_belongs() -> None:
    assert "`nodes` stands at the top; it belongs under [factors]" in refusal(f"nodes = 2\n{MINIMAL}")
    assert "`repeats` stands at the top; it belongs under [run]" in refusal(f"repeats = 2\n{MINIMAL}")
    assert "`reach` stands at the top; it belongs under [launch]" in refusal(f'reach = "ray"\n{MINIMAL}')
    assert "`nodes` stands under [run]; it belongs under [factors]" in refusal(f"{MINIMAL}[run]\nnodes = 2\n")


def test_an_include_that_names_nothing_is_an_error() -> None:
    assert "spec.toml:4: include[0]: names no factor" in refusal(f"{MINIMAL}[[include]]\n")
    assert "include: 3 is not a list of tables" in refusal(f"include = 3\n{MINIMAL}")


# --- [run] ---


def policy(text: str) -> RunPolicy:
    return read(f"{MINIMAL}[run]\n{text}\n").run


def test_an_absent_run_table_means_the_declared_defaults() -> None:
    assert read(MINIMAL).run == RunPolicy()
    assert policy("") == RunPolicy()


def test_each_policy_is_read() -> None:
    assert policy("repeats = 5").repeats == Repeats(5, 5)
    assert policy("repeats = { min = 4 }").repeats == Repeats(4, 4)
    assert policy("repeats = { min = 4, max = 4 }").repeats == Repeats(4, 4)
    assert policy('pair = ["nodes"]').pair == ("nodes",)
    assert policy("pair = []").pair == ()
    assert policy('order = "sorted"').order == "sorted"
    assert policy("seed = 0").seed == 0
    assert policy("warmup = 2").warmup == 2
    assert policy('timeout = "auto"').timeout is None
    assert policy("timeout = 0.5").timeout == 0.5
    assert policy('timeout = "15m"').timeout == 900.0
    assert policy("retry = { attempts = 1 }").retry == Retry(1, 2.0, 60.0)
    assert policy('retry = { wait = "1s..2s" }').retry == Retry(4, 1.0, 2.0)
    assert policy('retry = { attempts = 2, wait = "0s" }').retry == Retry(2, 0.0, 0.0)
    assert policy('counters = "edges"').counters is None


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ('"auto"', "auto"),
        ('"none"', "none"),
        ('"8h"', "28800s"),
        ("90", "90s"),
        ('"2026-12-24T06:00"', "2026-12-24T06:00:00"),
        ("2026-12-24T06:00:00Z", "2026-12-24T06:00:00+00:00"),
    ],
)
def test_a_deadline_is_auto_none_a_duration_or_a_time(written: str, held: str) -> None:
    assert policy(f"deadline = {written}").deadline == held


def test_counters_are_looked_at_by_a_period_where_one_is_given() -> None:
    assert policy('counters = "edges"').counters is None
    assert policy('counters = "100ms"').counters == 0.1
    assert "10 ms" in refusal(f'{MINIMAL}[run]\ncounters = "1ms"\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('repeats = { min = 6, max = 12, until = "3%" }', "run.repeats: repeating until"),
        ("repeats = { min = 6, max = 12 }", "write how many launches, such as repeats = 6"),
        ("quarantine = { failures = 3, window = 10 }", "run.quarantine: taking bad nodes out"),
    ],
)
def test_a_policy_that_is_not_built_is_refused_with_not_yet(text: str, said: str) -> None:
    line = refusal(f"{MINIMAL}[run]\n{text}\n")
    assert said in line
    assert "not yet" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("repeats = 0", "write a whole number from 1"),
        ("repeats = true", "true is not allowed here"),
        ("repeats = { max = 3 }", "run.repeats.min: is missing or wrong"),
        ("repeats = { min = 3, max = 2 }", "run.repeats.max: 2 is less than min = 3"),
        ("repeats = { min = 3, maximum = 3 }", "did you mean `max`?"),
        ('repeats = { min = 3, until = "3" }', 'write a text with the sign, such as "3%"'),
        ('pair = ["nicks"]', "did you mean `nics`?"),
        ('pair = ["message_size"]', "one launch measures all sizes"),
        ('pair = "nics"', "write a list of texts"),
        ('order = "random"', "known: shuffled, sorted"),
        ("seed = -1", "write a whole number from 0"),
        ("warmup = -1", "write a whole number from 0"),
        ("timeout = 0", 'write seconds, a duration such as "15m", or "auto"'),
        ('timeout = "soon"', "is not a duration"),
        ("retry = 3", "run.retry: 3 is not a table"),
        ("retry = { attempts = 0 }", "run.retry.attempts: 0 is not allowed here"),
        ('retry = { wait = "9s..2s" }', 'write "2s..9s"'),
        ("retry = { atempts = 3 }", "did you mean `attempts`?"),
        ('deadline = "tomorrow"', 'a duration such as "8h"'),
        ("deadline = 07:32:00", 'a duration such as "8h"'),
        ('counters = "often"', "is not a duration"),
        ("repeat = 3", "unknown key `repeat`; did you mean `repeats`?"),
    ],
)
def test_a_wrong_policy_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    line = refusal(f"{MINIMAL}[run]\n{text}\n")
    assert line.startswith("spec.toml:5: run.")
    assert said in line


def test_a_quarantine_that_cannot_be_is_said_beside_not_yet() -> None:
    lines = problems(f"{MINIMAL}[run]\nquarantine = {{ failures = 3, window = 2 }}\n")
    assert "2 attempts cannot hold 3 failures" in lines[0]


# --- the spec and its site ---


def test_without_a_site_everything_is_at_its_default() -> None:
    assert read(MINIMAL).site == Site()


def test_site_files_are_looked_for_in_the_order_promised(folder: Path) -> None:
    home = folder / "home" / ".config" / "fabric-sweep" / "site.toml"
    home.parent.mkdir(parents=True)
    home.write_text('cluster = "home"\n')
    assert read(MINIMAL).site.cluster == "home"
    assert read(MINIMAL, 'cluster = "here"\n').site.cluster == "here"
    Path("named.toml").write_text('cluster = "named"\n')
    assert read(MINIMAL, SWEEP_SITE="named.toml").site.cluster == "named"
    Path("given.toml").write_text('cluster = "given"\n')
    environ = {"HOME": str(folder), "SWEEP_SITE": "named.toml"}
    assert load(Path("spec.toml"), site=Path("given.toml"), environ=environ, catalogue=Shelf()).site.cluster == "given"
    assert load_site(Path("given.toml"), environ).cluster == "given"
    assert load_site(None, environ).cluster == "named"


def test_a_named_site_that_is_not_there_is_an_error() -> None:
    assert "nowhere.toml: no such site file; SWEEP_SITE names it" in problems(MINIMAL, SWEEP_SITE="nowhere.toml")[0]
    with pytest.raises(InputError, match=r"gone.toml: no such site file"):
        load_site(Path("gone.toml"), {})


def test_the_specs_own_tables_win_key_by_key() -> None:
    site = """
cluster = "below"
archive = "kept"
[launch]
reach = "local"
args = ["below"]
env = { A = "below", B = "below" }
[fabric]
link_gbps = 100
nic_policy = "first"
[levels.stack.x]
setup = ["below"]
env = { A = "below", B = "below" }
[levels.stack.y]
setup = ["below"]
"""
    text = f"""
cluster = "above"
{MINIMAL}
[launch]
args = ["above"]
env = {{ B = "above" }}
[fabric]
link_gbps = 400
[levels.stack.x]
path = ["/above"]
env = {{ B = "above" }}
"""
    merged = read(text, site).site
    assert (merged.cluster, merged.reach) == ("above", "local")
    assert merged.archive == str(Path.cwd() / "kept")
    assert merged.way == Way(args=("above",), env={"A": "below", "B": "above"})
    assert (merged.fabric.link_gbps, merged.fabric.nic_policy) == (400.0, "first")
    assert merged.levels["stack"]["x"] == Way(setup=("below",), path=("/above",), env={"A": "below", "B": "above"})
    assert merged.levels["stack"]["y"] == Way(setup=("below",))
    assert merged.text == site


def test_an_empty_list_in_the_spec_takes_the_sites_away() -> None:
    assert read(f"{MINIMAL}[launch]\nargs = []\n", '[launch]\nargs = ["x"]\n').site.way.args == ()


def test_an_archived_spec_loads_again_from_anywhere_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("spec.toml").write_text('[factors]\nbenchmark = "imb.pingpong"\n[launch]\npath = ["bin", "~/bin"]\n')
    Path("site.toml").write_text('[levels.stack.x]\npath = ["../y"]\n')
    environ = {"HOME": str(folder)}
    spec = load(Path("spec.toml"), environ=environ)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert reload((spec.source, spec.text), (spec.site.source, spec.site.text), environ) == spec
    assert reload((spec.source, spec.text), None, environ).site.levels == {}


# --- files ---


def test_every_problem_of_both_files_is_told_at_once_in_the_order_of_the_lines() -> None:
    lines = problems(
        'colour = "red"\n[factors]\nbenchmark = "imb.allreduce"\nnodes = 0\n[run]\nrepeats = 0\n',
        '[launch]\nreach = "rya"\nargs = 3\n',
    )
    assert [line.split(" ")[0] for line in lines] == [
        "spec.toml:1:",
        "spec.toml:4:",
        "spec.toml:6:",
        "site.toml:2:",
        "site.toml:3:",
    ]


def test_a_problem_names_the_line_where_its_statement_begins() -> None:
    text = (
        'description = """\nwhere = "x"\n[run]\n"""\n[factors]\nbenchmark = "imb.allreduce" # x\n\n'
        "nodes = [\n  1,\n  0,\n]\n[[include]]\nnodes = 1\n[[include]]\nnodes = 0\n"
    )
    first, second = problems(text)
    assert first.startswith("spec.toml:8: factors.nodes: 0")
    assert second.startswith("spec.toml:15: include[1].nodes: 0")


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"name = \n", "spec.toml:1:8: not valid TOML: invalid value"),
        (b"[factors]\nnodes = [1,\n", "spec.toml:3:1: not valid TOML: "),
        (b"a = 1\na = 2\n", "spec.toml:2:6: not valid TOML: cannot overwrite a value"),
        (b'name = "\xff"\n', "spec.toml:1: byte 0xff is not UTF-8; save the spec as UTF-8"),
        (b"\x00", "spec.toml:1:1: not valid TOML: "),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "spec.toml: not valid TOML: nested too deeply"),
        (b"a = " + b"9" * 5000, "spec.toml: not valid TOML: "),
        (b"#" * (17 << 20), "spec.toml: is larger than 16 MiB"),
    ],
)
def test_a_file_that_is_not_toml_is_one_line_with_line_and_column(raw: bytes, said: str) -> None:
    Path("spec.toml").write_bytes(raw)
    with pytest.raises(InputError) as caught:
        load(Path("spec.toml"), environ={}, catalogue=Shelf())
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_and_windows_line_ends_are_no_matter() -> None:
    Path("spec.toml").write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load(Path("spec.toml"), environ={"HOME": "/nonexistent"}, catalogue=Shelf()).factors


def test_a_file_that_cannot_be_read_is_one_line(folder: Path) -> None:
    for path, said in (
        ("missing.toml", "missing.toml: no such spec"),
        (".", ".: is a directory, not a spec"),
        ("spec.toml/x", "spec.toml/x: cannot read this spec: Not a directory"),
        ("a\0b", "cannot read this spec"),
    ):
        Path("spec.toml").write_text(MINIMAL)
        with pytest.raises(InputError, match=said.replace(".", r"\.")) as caught:
            load(Path(path), environ={}, catalogue=Shelf())
        assert "\n" not in str(caught.value)


def test_a_file_without_permission_is_one_line(folder: Path) -> None:
    Path("spec.toml").write_text(MINIMAL)
    Path("spec.toml").chmod(0)
    folder.chmod(0o755)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root reads everything
    try:
        with pytest.raises(InputError, match=r"cannot read this spec: Permission denied"):
            load(Path("spec.toml"), environ={}, catalogue=Shelf())
    finally:
        os.seteuid(user)


def test_the_name_of_a_spec_is_by_default_that_of_its_file() -> None:
    assert read(MINIMAL).name == "spec"


# --- whatever comes ---

NAMES = st.sampled_from(
    (
        "name",
        "where",
        "factors",
        "run",
        "include",
        "launch",
        "levels",
        "fabric",
        "archive",
        "cluster",
        "tags",
        "benchmark",
        "nodes",
        "sharp",
        "env",
        "imb",
        "nics",
        "message_size",
        "retry",
        "repeats",
        "stack",
        "x",
    )
)
VALUES = st.recursive(
    st.none().map(lambda _: True)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(string.printable, max_size=8)
    | st.sampled_from(["imb.allreduce", "1:8", "on", "auto", "first"])
    | st.just(dt.date(2026, 12, 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_toml_is_a_spec_or_a_list_of_clear_problems(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(tomli_w.dumps(document), encoding="utf-8")
    found: tuple[Problem, ...] = ()
    try:
        assert load(path, environ={"HOME": "/nonexistent"}, catalogue=Shelf()).factors
    except InputError as error:
        found = error.problems
    assert len("\n".join(map(str, found)).splitlines()) == len(found)
    assert all(problem.where.startswith(str(path)) and problem.what for problem in found)


def test_long_values_are_cut_in_errors() -> None:
    assert len(words("x" * 1000)) <= 60
    assert len(refusal(grid(sharp="x" * 5000))) < 300


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_spec_loads(path: Path) -> None:
    assert load(path, environ={"HOME": "/nonexistent"}).factors
