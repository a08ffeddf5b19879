"""The page about spec and site is true: its examples load, and it names every key that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from schemas.spec import CORE_FACTORS, RunPolicy
from sweep import levels, site, ways
from sweep.load import load
from sweep.site import load_site

PAGE = (Path(__file__).parents[2] / "docs" / "spec.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[1][:20])
def test_every_example_of_the_page_loads(block: str, tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(block)
    if block.startswith("# site"):
        assert load_site(path, {}).cluster
    else:
        assert block.startswith("# spec")
        assert load(path, site=tmp_path / "example.site.toml", environ={}).factors


@pytest.fixture(autouse=True)
def no_site(tmp_path: Path) -> None:
    (tmp_path / "example.site.toml").write_text("")


def test_the_page_names_every_key() -> None:
    top = ["name", "description", "tags", "where", "cluster", "archive"]
    tables = ["reach", "launcher", "args", "env", "path", "setup", "nics", "nic_policy", "link_gbps", "container"]
    policy = [each.name for each in fields(RunPolicy)]
    factors = [name for name in CORE_FACTORS if name != "operation"]
    for key in (*top, *tables, *policy, *factors):
        assert re.search(rf"`{key}\b", PAGE), key


def test_the_page_names_every_word_that_a_key_takes_today_and_later() -> None:
    today = (*site.REACHES, *ways.LAUNCHERS, *levels.PLACEMENTS)
    later = ways.LAUNCHERS_LATER
    table = PAGE.partition("## What is not yet built")[2].rpartition("## What is not yet built")[2]
    assert all(word in PAGE for word in today)
    assert all(word in table for word in later)


def test_links_inside_the_page_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]*)\)", PAGE)) <= anchors
