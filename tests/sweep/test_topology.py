"""Leaf switches: from the site's own table or from Slurm's file, down to where `compact` and `spread` put a launch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InputError
from schemas.plan import Node
from sweep.site import load_site
from sweep.topology import from_slurm, hosts, with_leaves
from tests.house import House

SLURM = """\
# two leaves and a spine
SwitchName=leaf1 Nodes=n[1-2] LinkSpeed=100
switchname=leaf2 \\
    nodes=n[3-4],gpu[01-02]   # a comment
SwitchName=spine Switches=leaf[1-2]
"""
CLUSTER = "".join(f'[[nodes]]\nname = "n{number}.example"\n' for number in (1, 2, 3, 4))


def site_topology(folder: Path, text: str) -> dict[str, str]:
    (folder / "site.toml").write_text(text)
    return dict(load_site(folder / "site.toml", {}).fabric.topology)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as caught:
        site_topology(folder, text)
    return str(caught.value)


def test_a_table_of_host_lists_names_each_node_s_leaf(tmp_path: Path) -> None:
    text = '[fabric.topology]\nleaf1 = ["n[1-2,4]"]\nleaf2 = ["n3", "gpu[08-10]"]\n'
    assert site_topology(tmp_path, text) == {
        "n1": "leaf1",
        "n2": "leaf1",
        "n4": "leaf1",
        "n3": "leaf2",
        "gpu08": "leaf2",
        "gpu09": "leaf2",
        "gpu10": "leaf2",
    }


def test_slurm_s_file_is_found_beside_the_site_and_its_leaf_switches_are_read(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_text(SLURM)
    found = site_topology(tmp_path, '[fabric]\ntopology = "topology.conf"\n')
    assert found == {"n1": "leaf1", "n2": "leaf1", **dict.fromkeys(("n3", "n4", "gpu01", "gpu02"), "leaf2")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[fabric.topology]\nleaf1 = "n1"\n', 'write leaf = ["n[1-4]", "n7"]'),
        ("[fabric.topology]\n", "fabric.topology"),
        ("[fabric]\ntopology = 3\n", "3 is not allowed here"),
        ('[fabric.topology]\nleaf1 = ["n[1-"]\n', "leaf `leaf1`: 'n[1-' is no list of hosts"),
        ('[fabric.topology]\nleaf1 = ["@all"]\n', "'@all' is no list of hosts"),
        ('[fabric.topology]\nleaf1 = ["n[1-999999999]"]\n', "names too many hosts"),
        ('[fabric.topology]\na = ["n1"]\nb = ["n[1-2]"]\n', "leaf `b`: n1 hangs on `a` already"),
        ('[fabric]\ntopology = "nowhere.conf"\n', "nowhere.conf cannot be read: No such file"),
    ],
)
def test_a_topology_that_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    said = refusal(tmp_path, text)
    assert words in said
    assert said.startswith(f"{tmp_path / 'site.toml'}:")


def test_a_file_without_leaf_switches_is_refused_and_so_is_each_bad_line_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    file.write_text("BlockName=b1 Nodes=n[1-4]\n")
    with pytest.raises(InputError, match="names no node; a leaf switch is a line `SwitchName=s1"):
        from_slurm(file)
    file.write_text(f"{SLURM}SwitchName=leaf3 Nodes=n[\nSwitchName=leaf4 Nodes=n2\n")
    with pytest.raises(InputError) as caught:
        from_slurm(file)
    first, second = map(str, caught.value.problems)
    assert first.startswith(f"{file}:6: 'n[' is no list of hosts")
    assert second.startswith(f"{file}:7: n2 hangs on `leaf1` already")


def test_a_node_is_known_by_its_full_or_short_name_and_an_unknown_one_keeps_what_it_said() -> None:
    nodes = [Node("n1"), Node("n2.example", facts={"kernel": "6"}), Node("n3", facts={"leaf": "own"}), Node("n4")]
    found = with_leaves(nodes, {"n1": "a", "n2": "b"})
    assert [dict(node.facts) for node in found] == [
        {"leaf": "a"},
        {"kernel": "6", "leaf": "b"},
        {"leaf": "own"},
        {},
    ]


@given(st.text(alphabet="n12[]-,. a@&^!/x*", max_size=12))
def test_any_text_is_a_list_of_hosts_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        assert all(hosts(text))


def test_compact_and_spread_follow_the_site_s_topology_and_without_one_say_where_to_write_it(house: House) -> None:
    cluster = house.write("cluster.toml", CLUSTER)
    spec = house.spec('nodes = 2\nplacement = ["compact", "spread"]\ncommand.launcher = "mpiexec"\ncommand.argv = "ls"')
    blind = json.loads(house.sweep("plan", spec, "--inventory", cluster, "-f", "json").out)
    assert {trial["unsupported"].partition(" needs ")[2] for trial in blind["trials"]} == {
        "each node's leaf switch, and nothing says n1.example's: see [fabric.topology]"
    }
    site = house.write("site.toml", '[fabric.topology]\na = ["n[1,3]"]\nb = ["n[2,4]"]\n')
    done = house.sweep("plan", spec, "--site", site, "--inventory", cluster, "-f", "json")
    assert done.code == 0, done.err
    known = json.loads(done.out)
    assert [trial["unsupported"] for trial in known["trials"]] == [None, None]
    assert known["coverage"]["launches"] == {"n1.example": 1, "n2.example": 2, "n3.example": 0, "n4.example": 1}
