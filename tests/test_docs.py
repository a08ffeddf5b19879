"""What the documentation says is true: its commands run, its examples load, its links lead somewhere."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from archive.where import keep
from schemas.attempt import Exit, Line, Output, Stream
from schemas.plan import Inventory
from schemas.spec import Spec
from sweep import lab
from sweep.cli import app
from sweep.expand import expand
from sweep.load import load
from sweep.site import load_site
from tasks import benchmarks

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str) -> list[Block]:
    """Every block in one of these languages, in the order of pages and lines."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^( *)```(\w+)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
            if match[2] in languages:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page, line, match[2], textwrap.dedent(match[3])))
    return found


def environment(folder: Path) -> dict[str, str]:
    """A user's, in a folder whose site runs everything on this machine, without Ray."""
    (folder / "local.toml").write_text('[launch]\nreach = "local"\n')
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWEEP_", "RAY_"))}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, "PATH": path, "HOME": str(folder), "SWEEP_SITE": str(folder / "local.toml")}


def run(script: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


SMALL = """
cat > small.toml <<'END'
name = "small"
[factors]
benchmark = "command.run"
command.argv = "/bin/echo hello"
END
sweep run small.toml
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """A folder per page, in which its blocks run one after the other; all but the README's have an archive."""
    return {page: tmp_path_factory.mktemp(page.stem) for page in PAGES}


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_run_as_they_stand(block: Block, folders: dict[Path, Path]) -> None:
    folder = folders[block.page]
    if block.page.name != "README.md" and not (folder / "sweep-archive").exists():
        run(SMALL, folder)
    run(block.text, folder)


@pytest.mark.parametrize(
    "block", [block for block in blocks("python") if block.page.name in ("README.md", "archive.md")], ids=str
)
def test_questions_from_python_run_as_they_stand(block: Block, tmp_path: Path) -> None:
    run(SMALL, tmp_path)
    done = subprocess.run([sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_lab_is_driven_from_python_as_its_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [block] = [block for block in blocks("python") if block.page.name == "lab.md"]
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(lab, "up", functools.partial(lab.up, ray=False))
    try:
        exec(compile(block.text, str(block), "exec"), {})
    finally:
        lab.down("lab")


@pytest.fixture
def contributed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The benchmark that CONTRIBUTING adds, as one more module."""
    [block] = [block for block in blocks("python") if block.page.name == "CONTRIBUTING.md"]
    (tmp_path / "contributed.py").write_text(block.text)
    monkeypatch.setattr(benchmarks, "__path__", [*benchmarks.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield "contributed"
    benchmarks.get.cache_clear()
    sys.modules.pop("tasks.benchmarks.contributed", None)


OSU = """# OSU MPI Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
8                       0.18"""


def test_the_benchmark_that_contributing_adds_plans_launches_and_reads(contributed: str) -> None:
    assert contributed in benchmarks.names()
    module = benchmarks.get(contributed)
    factors = {"benchmark": (f"{contributed}.latency",), "message_size": (4, 8), "ranks_per_node": (2, 3)}
    plan = expand(Spec("contributed", factors), Inventory(), keep, 1)
    launched = [trial for trial in plan.trials if trial.unsupported is None]
    assert [trial.sizes for trial in sorted(launched, key=lambda trial: trial.sizes)] == [(4,), (8,)]
    assert {trial.unsupported for trial in plan.trials} - {None} == {
        "osu_latency uses 2 ranks, and would leave 1 idle",
    }
    launch = module.launch(next(trial for trial in launched if trial.sizes == (8,)), [])
    assert launch.roles[0].argv == ("osu_latency", "-m", "8:8", "-i", "1000")
    lines = tuple(Line(float(at), text) for at, text in enumerate(OSU.splitlines()))
    output = Output(launch.asked, 0.0, 3.0, "exited", (Exit("ranks", 0, 0),), (Stream("ranks", 0, "stdout", lines),))
    [row] = module.parse(output).measurements
    assert (row.metric, row.value, row.unit, row.message_size) == ("time", 0.18, "us", 8)
    assert module.parse(output).missing == ()


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_specs_and_sites_load(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(block.text)
    (tmp_path / "none.toml").write_text("")
    if "[factors]" in block.text:
        assert load(path, site=tmp_path / "none.toml", environ={"HOME": str(tmp_path)}).factors
    else:
        assert load_site(path, {"HOME": str(tmp_path)}).cluster


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=name)
def test_examples_load(path: Path, tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("")
    assert load(path, site=tmp_path / "none.toml", environ={"HOME": str(tmp_path)}).factors


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "sites").glob("*.toml")), ids=name)
def test_example_sites_load(path: Path, tmp_path: Path) -> None:
    assert load_site(path, {"HOME": str(tmp_path)}).cluster


def commands() -> set[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    found = set()
    for word, command in group.commands.items():
        inner = command.commands if isinstance(command, TyperGroup) else {}
        found |= {f"{word} {each}" for each in inner} or {word}
    return found


def test_every_command_appears_in_the_documentation() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [command for command in sorted(commands()) if not re.search(rf"\bsweep {command}\b", text)] == []


def test_the_documentation_names_no_command_that_does_not_exist() -> None:
    known = {word for command in commands() for word in (command, command.split()[0])}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        typed = re.findall(r"(?:`|^\$ |^|\| )sweep ([a-z]+)\b", text, re.MULTILINE)
        assert [word for word in typed if word not in known] == [], name(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    anchors = [re.sub(r"[^\w\- ]", "", head.lower()) for head in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    for target in re.findall(r"\]\(([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" not in target:
            assert (page.parent / path).exists(), target
            assert path or anchor in [each.strip().replace(" ", "-") for each in anchors], target


def test_makefile_targets_that_the_pages_name_exist() -> None:
    rules = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:`|^\$ )make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)) <= rules
