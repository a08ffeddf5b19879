"""The driver killed at any moment: nothing that was reported done is lost, nothing is there twice, nothing is left."""

from __future__ import annotations

import signal

from tests.house import House, finished, soon
from tests.performance.kills import campaign


def test_a_driver_killed_at_twelve_random_moments_loses_and_doubles_nothing(house: House) -> None:
    harm = campaign(house, kills=12, seed=20, executor="inline")
    assert (harm.kills, harm.lost, harm.doubled, harm.left) == (12, 0, 0, 0)
    assert harm.reported > 12, harm
    assert harm.runs >= 1


def test_a_killed_driver_leaves_nothing_running_even_what_hides_in_its_own_session(house: House) -> None:
    house.write("hide.sh", "#!/bin/bash\ntrap '' TERM HUP\nsetsid sleep 300 &\n(setsid setsid sleep 300 &)\nsleep 300")
    house.spec(f'command.argv = "{house.folder}/hide.sh"', "timeout = 100")
    process = house.start("run", "spec.toml", "--executor", "inline")
    assert soon(lambda: len(house.named("sleep")) == 3)
    process.kill()
    assert finished(process).code == -signal.SIGKILL
    assert soon(lambda: not house.alive())
    assert house.sql("SELECT count(*) FROM runs") == [(1,)]
    assert house.sql("SELECT count(*) FROM attempts") == [(0,)]
