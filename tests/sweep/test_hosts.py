"""Hostfiles and Slurm's node lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InputError, SiteError
from schemas.spec import Site
from sweep import hosts


def read(folder: Path, text: str) -> tuple[str, ...]:
    path = folder / "hosts"
    path.write_text(text)
    return hosts.of_file(path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("node01\nnode02\n", ("node01", "node02")),
        ("# rack 1\n\n  node02   # the second\nnode01\nnode02\n", ("node02", "node01")),
        ("node01 slots=8\nnode02 slots = 8 max_slots=16\n", ("node01", "node02")),
        ("node01:8\r\nme@10.0.0.2:4\r\n", ("node01", "me@10.0.0.2")),
        ("n[1-3,7] slots=2", ("n1", "n2", "n3", "n7")),
    ],
)
def test_every_launchers_spelling_of_a_hostfile_is_read(tmp_path: Path, text: str, wanted: tuple[str, ...]) -> None:
    assert read(tmp_path, text) == wanted


def test_every_line_that_names_no_host_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, "node01\nnode 2\nnode03\n-oProxyCommand=x\nn[1-\n")
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["2", "4", "5"]


@pytest.mark.parametrize("text", ["", "# none\n\n"])
def test_a_hostfile_without_a_host_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="names no host"):
        read(tmp_path, text)


def test_a_hostfile_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        hosts.of_file(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("reach", "environ", "said"),
    [
        ("srun", {"SLURM_JOB_NODELIST": "n1"}, "inside a Slurm allocation alone"),
        ("ssh", {}, "give --hosts FILE"),
        ("srun", {"SLURM_JOB_ID": "1"}, "no hosts are known"),
    ],
)
def test_where_no_hosts_are_known_it_says_what_to_do(reach: Any, environ: dict[str, str], said: str) -> None:
    with pytest.raises(SiteError, match=said):
        hosts.executor(reach, None, environ)


def test_the_command_line_wins_over_the_sites_reach() -> None:
    assert hosts.chosen(Site(reach="ssh"), None, None) == "ssh"
    assert hosts.chosen(Site(reach="ssh"), None, "inline") is None
    assert hosts.chosen(Site(), None, None) is None
    with pytest.raises(InputError, match="--hosts"):
        hosts.chosen(Site(reach="ssh"), Path("hosts"), "ray")
