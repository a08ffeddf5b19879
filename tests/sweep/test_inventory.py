"""An inventory survives being written and read; what it does not say stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.plan import Inventory, Nic, Node, Tool
from sweep.inventory import FLAVOURS, from_toml, to_toml

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
WORD = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(
    lambda text: text.strip() and "\0" not in text
)
STACK = st.none() | WORD.filter(lambda name: name != "default")
NIC = st.builds(
    Nic,
    name=WORD,
    link_layer=st.sampled_from(["infiniband", "ethernet"]),
    rate_gbps=st.none() | st.floats(0, 1e5),
    state=st.none() | TEXT,
    numa=st.none() | st.integers(-1, 64),
    address=st.none() | WORD,
    firmware=st.none() | WORD,
)
NODE = st.builds(
    Node,
    name=WORD,
    address=st.just("") | WORD,
    cpus=st.none() | st.integers(0, 2**31 - 1),
    memory_bytes=st.none() | st.integers(0, 2**63 - 1),
    nics=st.none() | st.lists(NIC, max_size=3).map(tuple),
    facts=st.dictionaries(WORD, TEXT, max_size=3),
)
TOOLS = st.dictionaries(WORD, st.tuples(WORD, st.just("") | WORD), max_size=3).map(
    lambda found: {name: Tool(name, path, version) for name, (path, version) in found.items()}
)
INVENTORY = st.builds(
    Inventory,
    cluster=WORD,
    nodes=st.none() | st.lists(NODE, max_size=3, unique_by=lambda node: node.name).map(tuple),
    tools=st.dictionaries(STACK, TOOLS, max_size=3),
    flavours=st.dictionaries(STACK, st.sampled_from(FLAVOURS), max_size=3),
    sharp=st.none() | st.booleans(),
)


@given(INVENTORY)
def test_every_inventory_survives_being_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, inventory: Inventory
) -> None:
    path = tmp_path_factory.getbasetemp() / "inventory.toml"
    path.write_text(to_toml(inventory), encoding="utf-8")
    assert from_toml(path) == inventory


def read(folder: Path, text: str) -> Inventory:
    path = folder / "cluster.toml"
    path.write_text(text)
    return from_toml(path)


def test_what_a_file_does_not_say_is_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, "") == Inventory(nodes=None, tools={}, flavours={}, sharp=None)
    assert read(tmp_path, '[[nodes]]\nname = "a"\n').nodes == (Node("a", cpus=None, memory_bytes=None, nics=None),)


def test_none_is_not_unknown(tmp_path: Path) -> None:
    assert read(tmp_path, "nodes = []\n").nodes == ()
    assert read(tmp_path, '[[nodes]]\nname = "a"\nnics = []\n').nodes == (Node("a", nics=()),)
    assert read(tmp_path, "[stacks.default.tools]\n").tools == {None: {}}
    assert read(tmp_path, '[stacks.x]\nflavour = "mpich"\n') == Inventory(flavours={"x": "mpich"})


def test_the_sites_own_stack_is_written_as_default() -> None:
    inventory = Inventory(
        tools={None: {"mpiexec": Tool("mpiexec", "/usr/bin/mpiexec", "4.1")}}, flavours={None: "mpich"}
    )
    assert to_toml(inventory).splitlines() == [
        'cluster = "local"',
        "",
        "[stacks.default]",
        'flavour = "mpich"',
        "",
        "[stacks.default.tools.mpiexec]",
        'path = "/usr/bin/mpiexec"',
        'version = "4.1"',
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster = 3\n", "cluster.toml:1: cluster: 3 is not allowed here"),
        ('sharp = "yes"\n', "cluster.toml:1: sharp: 'yes' is not allowed here; write true or false"),
        ("node = []\n", "unknown key `node`; did you mean `nodes`?"),
        ("nodes = 3\n", "nodes: 3 is not a list of tables; write [[nodes]] above each"),
        ("[[nodes]]\ncpus = 3\n", "cluster.toml:1: nodes[0].name: is missing; write the node's host name"),
        ('[[nodes]]\nname = "a"\ncpus = -1\n', "nodes[0].cpus: -1 is not allowed here; write a whole number from 0"),
        ('[[nodes]]\nname = "a"\ncpu = 1\n', "unknown key `cpu`; did you mean `cpus`?"),
        ('[[nodes]]\nname = "a"\nmemory_bytes = "1G"\n', "nodes[0].memory_bytes: '1G' is not allowed here"),
        ('[[nodes]]\nname = "a"\n[[nodes]]\nname = "a"\n', "cluster.toml:4: nodes[1].name: a second node 'a'"),
        ('[[nodes]]\nname = "a"\nfacts = { kernel = 6 }\n', "nodes[0].facts.kernel: 6 is not allowed here"),
        ('[[nodes]]\nname = "a"\n[[nodes.nics]]\nname = "x"\n', "nodes[0].nics[0].link_layer: is missing; one of"),
        (
            '[[nodes]]\nname = "a"\n[[nodes.nics]]\nname = "x"\nlink_layer = "infinband"\n',
            "cluster.toml:5: nodes[0].nics[0].link_layer: 'infinband' is not allowed here; did you mean `infiniband`?",
        ),
        ('[stacks.x]\nflavour = "lam"\n', "stacks.x.flavour: 'lam' is not allowed here"),
        ("[stacks.x.tools.mpiexec]\n", "stacks.x.tools.mpiexec.path: is missing; write the program's absolute path"),
        ("[stacks.x]\ntools = 3\n", "stacks.x.tools: 3 is not a table"),
        ("cluster = \n", "cluster.toml:1:11: not valid TOML: invalid value"),
    ],
)
def test_a_wrong_inventory_is_refused_with_what_would_be_right(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    (problem,) = caught.value.problems
    assert said in str(problem)


def test_all_problems_of_an_inventory_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, 'sharp = 1\ncluster = 2\n[[nodes]]\nname = ""\n[stacks]\nx = 1\n')
    assert len(caught.value.problems) == 4


def test_a_missing_inventory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.toml: no such inventory$"):
        from_toml(tmp_path / "gone.toml")
