"""What tests of every room may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A working directory in which commands are typed; nothing that was started there outlives the test."""
    home = House(tmp_path)
    yield home
    assert home.close() == [], "left behind"
