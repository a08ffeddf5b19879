"""Clusters that do not let us in: one clear line, exit code 3, and no minutes of silence."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweep.ray_trouble import explain
from tests.house import House, soon

OTHER_RAY = """\
Version mismatch: The cluster was started with:
    Ray: 2.59.0
    Python: 3.11.7
This process on node 192.0.2.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""
"""What a client of Ray 2.60 said of a head of 2.59."""
OTHER_PYTHON = OTHER_RAY.replace("2.59.0", "2.60.0").replace("Python: 3.11.7", "Python: 3.11.9", 1)
REFUSED = (
    "gcs_client.cc:210: Failed to get cluster ID from GCS server: Unauthenticated: RPC error: InvalidAuthToken: "
    "Authentication token is missing or incorrect"
)
NO_TOKEN = (
    "Token authentication is enabled but no authentication token was found. Ensure that the token for the cluster"
)
NO_FILE = "RAY_AUTH_TOKEN_PATH is set but file cannot be opened or is empty: /tmp/nofile. Ensure that the token"


@pytest.mark.parametrize(
    ("text", "mode", "parts"),
    [
        (OTHER_RAY, "", ("there is Ray 2.59.0 and here is Ray 2.60.0", "; pip install ray==2.59.0")),
        (OTHER_PYTHON, "", ("there is Python 3.11.9 and here is Python 3.11.7", "an environment of Python 3.11.9")),
        (
            OTHER_RAY.replace("3.11.7", "3.12.1", 1),
            "",
            (
                "Ray 2.59.0",
                "Python 3.12.1",
                "; run sweep from an environment of Python 3.12.1, pip install ray==2.59.0",
            ),
        ),
        (REFUSED, "", ("wants a token and none was given; set RAY_AUTH_MODE=token",)),
        (REFUSED, "token", ("the token given here is not the cluster's",)),
        (NO_TOKEN, "token", ("no token is found", "ray get-auth-token --generate")),
        (NO_FILE, "token", ("no token is found", "RAY_AUTH_TOKEN_PATH")),
    ],
)
def test_what_ray_says_becomes_one_line_with_what_to_do(text: str, mode: str, parts: tuple[str, ...]) -> None:
    said = explain(text, {"RAY_AUTH_MODE": mode})
    assert said is not None
    assert "\n" not in said
    for part in parts:
        assert part in said


@given(st.text(max_size=200))
def test_what_is_unknown_is_left_to_ray_s_own_words(text: str) -> None:
    assert explain(f"Failed: {text}", {}) is None


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the token of a cluster."""
    path = tmp_path_factory.mktemp("token") / "auth_token"
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, token: Path) -> Iterator[str]:
    """The address of a Ray cluster that wants a token."""
    home = House(tmp_path_factory.mktemp("cluster"))
    mark, _, value = home.mark.partition("=")
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder, socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        server.close()
        command = [*(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"), f"--port={port}"]
        command += ["--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
        command += ["--node-ip-address=127.0.0.1", "--object-store-memory=80000000"]
        log = home.folder / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command,
                env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), mark: value},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=home.folder,
            )
        try:
            assert soon(lambda: process.poll() is not None or "will now block forever" in log.read_text(), 60.0)
            assert process.poll() is None, log.read_text()
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)
            assert home.close() == []


def refused(house: House, address: str, **env: str) -> str:
    """The one line that a run ends with where the cluster does not let it in."""
    spec = house.spec('command.argv = "true"')
    done = house.sweep("run", spec, "--address", address, env=env)
    assert done.code == 3, done.err
    _, line = done.lines
    assert line.startswith(f"sweep: cannot join the Ray cluster at {address}: ")
    return line


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_with_tokens_says_which_is_missing_or_wrong_and_takes_the_right_one(
    house: House, cluster: str, token: Path, tmp_path: Path
) -> None:
    assert "wants a token and none was given; set RAY_AUTH_MODE=token" in refused(house, cluster, RAY_AUTH_MODE="")
    wrong = house.write("wrong", secrets.token_hex(32))
    line = refused(house, cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(wrong))
    assert "the token given here is not the cluster's" in line
    line = refused(house, cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(tmp_path / "nowhere"))
    assert "no token is found;" in line
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    done = house.sweep("run", house.spec('command.argv = "true"'), "--address", cluster, env=right)
    assert done.code == 0, done.err


@pytest.mark.ray
@pytest.mark.slow
def test_a_listener_that_is_no_ray_is_given_up_before_ray_would(house: House) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = refused(house, f"127.0.0.1:{server.getsockname()[1]}")
    assert "does not answer as a Ray cluster does; check --address and RAY_ADDRESS" in line


def test_the_recorded_versions_are_as_ray_here_still_says_them() -> None:
    from ray._private import utils

    with pytest.raises(RuntimeError) as caught:
        utils.check_version_info({"ray_version": "2.59.0", "python_version": "3.9.1"}, "node 192.0.2.2")
    said = explain(str(caught.value), {})
    assert said is not None
    assert re.search(r"pip install ray==2\.59\.0", said)
    assert "Python 3.9.1" in said
