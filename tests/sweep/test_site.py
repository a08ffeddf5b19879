"""A site file says how things are run on a cluster: it is read whole, and what is wrong in it is said, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.errors import InputError
from schemas.spec import Site, Way
from sweep.site import load_site

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(text: str) -> Site:
    Path("site.toml").write_text(text)
    return load_site(None, {"HOME": str(Path.cwd() / "home")})


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    (problem,) = caught.value.problems
    return str(problem)


def test_relative_paths_start_at_the_file_that_holds_them(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "site.toml").write_text(
        'archive = "../runs"\n[launch]\npath = ["bin", "/abs/./x", "~/bin"]\n'
        'env = { TOPO = "./topo.xml", UP = "../x", PLAIN = "x/y" }\n'
    )
    site = load_site(Path("etc/site.toml"), {"HOME": "/home/user"})
    assert site.archive == str(folder / "runs")
    assert site.way.path == (str(folder / "etc" / "bin"), "/abs/x", "/home/user/bin")
    assert site.way.env == {"TOPO": str(folder / "etc" / "topo.xml"), "UP": str(folder / "x"), "PLAIN": "x/y"}


def test_levels_are_spelt_as_the_loaded_factors_are() -> None:
    site = read(
        '[levels.sharp.true]\nargs = ["a"]\n[levels.nodes.1K]\nargs = ["b"]\n'
        '[levels.env.NCCL_ALGO.Ring]\nargs = ["c"]\n[levels."imb.iterations".5]\nargs = ["d"]\n',
    )
    assert site.levels == {
        "sharp": {"on": Way(args=("a",))},
        "nodes": {"1024": Way(args=("b",))},
        "env.NCCL_ALGO": {"Ring": Way(args=("c",))},
        "imb.iterations": {"5": Way(args=("d",))},
    }


def test_a_stack_may_bring_a_launcher() -> None:
    assert read('[levels.stack.bare]\nlauncher = "none"\n').levels["stack"]["bare"].launcher == "none"


@pytest.mark.parametrize(
    "text",
    [
        '[launch]\nlauncher = "torchrun"\n',
        'archive = "s3://bucket/archive"\n',
        '[levels.stack.x]\nlauncher = "torchrun"\n',
        '[levels.sharp.on]\nlauncher = "none"\n',
        '[levels.stack.x]\ncontainer = { engine = "podman", image = "x" }\n',
    ],
)
def test_a_way_of_running_that_is_not_built_is_refused_with_not_yet(text: str) -> None:
    line = refusal(text)
    assert "not yet" in line
    assert line.startswith("site.toml:")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster = 3\n", "cluster: 3 is not allowed here; write a text in quotes"),
        ('cluster = " "\n', "cluster: ' ' is not allowed here"),
        ("archive = []\n", "write the path of a folder in quotes"),
        ('[launch]\nreach = "rya"\n', "launch.reach: 'rya' is not allowed here; did you mean `ray`?"),
        ('[launch]\nlauncher = "mpirun"\n', "launch.launcher: 'mpirun' is not allowed here"),
        ('[launch]\nargs = "--bind-to numa"\n', "write a list of texts"),
        ('[launch]\npath = "bin"\n', "write a list of folders"),
        ("[launch]\nenv = { A = [1] }\n", "is no value of an environment variable"),
        ('[launch]\nenv = "A=1"\n', "write a table of variables"),
        ('[launch]\nenvironment = { A = "1" }\n', "unknown key `environment`"),
        ('[fabric]\nnics = "mlx5_0"\n', 'write names, such as ["mlx5_0:1"]'),
        ('[fabric]\nnics = { link = "infiniband" }\n', "a selector has no `link`"),
        ('[fabric]\nnic_policy = "rails:"\n', '"rails:0,4"'),
        ("[fabric]\nlink_gbps = 0\n", "fabric.link_gbps: 0 is not allowed here"),
        ("[fabric]\nlink_rate = 400\n", "unknown key `link_rate`"),
        ("[levels]\nstack = 3\n", "levels.stack: 3 is not a table"),
        ("[levels.stack]\nx = 3\n", "levels.stack.x: 3 is not a table"),
        ('[levels.stak.x]\npath = ["a"]\n', "unknown factor `stak`; did you mean `stack`?"),
        ('[levels.stack.x]\nsetup = "module load x"\n', "write a list of texts"),
        ('[levels.stack.x]\nsetups = ["x"]\n', "did you mean `setup`?"),
        ("[levels.stack.default]\n", "`default` is what no stack is called; use [launch] for it"),
        ('[levels.message_size.8]\nargs = ["x"]\n', "cannot bring its own way of running"),
        ("nodes = 3\n", "unknown key `nodes`"),
        ('where = "x"\n', "`where` stands at the top; it belongs into a spec"),
        ('[factors]\nbenchmark = "x"\n', "`factors` stands at the top; it belongs into a spec"),
    ],
)
def test_a_wrong_site_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    line = refusal(text)
    assert said in line
    assert line.startswith("site.toml:")


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "sites").glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_site_loads(path: Path) -> None:
    assert load_site(path, {"HOME": "/home/user"}).cluster == path.stem
