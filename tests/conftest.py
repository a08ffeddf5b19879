"""What tests of every room may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.house import House

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # whoever started us in the background had Ctrl-C ignored, here and in all that we start; the tests press it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A working directory in which commands are typed; nothing that was started there outlives the test."""
    home = House(tmp_path)
    yield home
    assert home.close() == [], "left behind"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With SWEEP_NO_SKIP set nothing may be skipped but what only root can do: there, everything is installed."""
    report = yield
    if os.environ.get("SWEEP_NO_SKIP") and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if "root" not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped where nothing may be: {reason}"
    return report
