"""The house: imports run one way, third parties stay behind their borders (docs/architecture.md)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("sweep", "tasks", "archive", "schemas")

MAY_IMPORT = {
    "schemas": {"schemas"},
    "tasks": {"tasks", "schemas"},
    "archive": {"archive", "schemas"},
    "sweep": {"sweep", "tasks", "archive", "schemas"},
}
"""sweep -> {tasks | archive} -> schemas; tasks and archive do not know each other."""

BORDERS = {
    "ray": {"sweep/cluster.py"},
    "subprocess": {"tasks/node_part.py", "tasks/pipe.py"},
    "tenacity": {"sweep/drive.py"},
    "typer": {"sweep/"},
    "rich": {"sweep/"},
    "duckdb": {"archive/"},
    "pyarrow": {"schemas/arrow.py", "archive/"},
    "tomli_w": {"sweep/inventory.py"},
    "pyroute2": {"sweep/lab_network.py"},
    "ClusterShell": {"sweep/topology.py"},
}
"""Third party -> the files (or rooms) that may import it; what is not named here is imported nowhere."""

WORKER_SIDE = ("tasks/node_part.py", "tasks/node_facts.py", "tasks/pipe.py", "tasks/agent.py", "tasks/rank.py")
"""What runs on a worker: the standard library and nothing of ours."""


def modules() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", modules(), ids=name)
def test_imports_run_one_way(path: Path) -> None:
    room = name(path).split("/")[0]
    ours = {module.split(".")[0] for module in imports(path)} & {*ROOMS, "tests"}
    assert ours <= MAY_IMPORT[room]


@pytest.mark.parametrize("path", modules(), ids=name)
def test_third_parties_stay_behind_their_borders(path: Path) -> None:
    for module in imports(path):
        top = module.split(".")[0]
        if top in ROOMS or (top in sys.stdlib_module_names and top not in BORDERS):
            continue
        assert top in BORDERS, f"{name(path)} imports {top}, which has no border"
        assert any(name(path).startswith(border) for border in BORDERS[top]), f"{name(path)} imports {top}"


@pytest.mark.parametrize("file", WORKER_SIDE)
def test_what_runs_on_a_worker_needs_nothing_of_ours(file: str) -> None:
    assert {module.split(".")[0] for module in imports(ROOT / file)} <= set(sys.stdlib_module_names)


def test_only_the_front_prints() -> None:
    for path in modules():
        calls = [
            node.func.id
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        ]
        assert "print" not in calls or name(path).startswith("sweep/") or name(path) in WORKER_SIDE, name(path)


def test_tests_stay_out_of_the_wheel() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'packages = ["sweep", "tasks", "schemas", "archive"]' in text
