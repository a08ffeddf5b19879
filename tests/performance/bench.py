"""The bars, measured side by side in one run: `make bench` prints the table.

    python tests/performance/bench.py [--only NAME…] [--peers FOLDER]

`--peers` names a folder with a `run.py` that times other tools on the same work: 100 no-op trials.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import archive

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LIBRARY = {"LD_LIBRARY_PATH": str(BIN.parent / "lib")}
"""Without it IMB-MPI1 finds no MPI."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure beside its bar."""

    what: str
    measured: str
    bar: str
    met: bool | None = None


def main() -> None:
    """Measure what was asked, print one table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", nargs="*", choices=[*BENCHES, "none"], default=list(BENCHES))
    arguments.add_argument("--peers", type=Path)
    given = arguments.parse_args()
    figures: list[Figure] = []
    for name in given.only if given.only != ["none"] else ():
        print(f"{name} …", file=sys.stderr, flush=True)
        figures += BENCHES[name]()
    if given.peers is not None:
        figures += peers(given.peers)
    print("| what | measured | bar | met |\n| --- | --- | --- | --- |")
    for each in figures:
        met = "" if each.met is None else "yes" if each.met else "NO"
        print(f"| {each.what} | {each.measured} | {each.bar} | {met} |")


def sweep(*words: object, cwd: Path) -> tuple[float, float]:
    """Run the command line; its wall time in seconds and its largest resident memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [BIN / "sweep", *map(str, words)], cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"sweep {words} ended with {process.returncode}: {said[-2000:]}")
    return time.perf_counter() - start, usage.ru_maxrss / 1000


def inside(folder: Path) -> float:
    """Seconds from the first row to the last event of the only run: without the start of Ray."""
    text = "SELECT epoch(max(time)) - epoch(min(time)) FROM events WHERE kind IN ('started', 'ended')"
    [(seconds,)] = archive.open(folder).sql(text).fetchall()
    return float(seconds)


def noop(count: int) -> str:
    """A spec of so many trials that do nothing."""
    return f"""
name = "noop"
[factors]
benchmark = "command.run"
trial = {list(range(count))}
command.argv = "/bin/echo bandwidth={{trial}}"
command.match.bandwidth = 'bandwidth=(\\d+)'
command.unit.bandwidth = "GB/s"
"""


def noops(count: int) -> tuple[float, float]:
    """A sweep of so many trials that do nothing: milliseconds per trial, and the driver's memory in MB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "noop.toml").write_text(noop(count))
        _, memory = sweep("run", "noop.toml", "--archive", "a", cwd=folder)
        return inside(folder / "a") / count * 1000, memory


def overhead() -> list[Figure]:
    """What a trial costs beside its own work, through Ray, rows durable; 100, 1,000 and 10,000 trials."""
    cost: dict[int, float] = {}
    memory: dict[int, float] = {}
    for count in (100, 1000, 10_000):
        cost[count], memory[count] = noops(count)
    growth = cost[10_000] / cost[1000]
    return [
        Figure("overhead per no-op trial of 1,000, rows durable", f"{cost[1000]:.1f} ms", "≤ 10 ms", cost[1000] <= 10),
        Figure(
            "the same for 100 and 10,000 trials", f"{cost[100]:.1f} and {cost[10_000]:.1f} ms", "flat", growth <= 1.25
        ),
        Figure(
            "memory of the driver at 100, 1,000, 10,000",
            ", ".join(f"{memory[count]:.0f} MB" for count in cost),
            "flat",
            memory[10_000] <= 1.5 * memory[1000],
        ),
    ]


SIZES = [4 << power for power in range(20)]
IMB = f"""
name = "imb"
[factors]
benchmark = "imb.allreduce"
message_size = {SIZES}
ranks_per_node = 2
imb.iterations = [200, 400, 600, 800, 1000]
stack = "impi"
[run]
seed = 1
[levels.stack.impi]
path = ["{BIN}"]
"""


def coalescing() -> list[Figure]:
    """20 sizes × 5 combinations of real IMB: inside the sweep, the same bare launches, and one launch per point.

    In turn, five times; of each launch the best counts, for two busy ranks on two cores are easily disturbed.
    """
    ours: dict[str, list[float]] = {}
    theirs: dict[str, list[float]] = {}
    for _ in range(5):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "imb.toml").write_text(IMB)
            sweep("run", "imb.toml", "--archive", "a", cwd=folder)
            columns = "parameters['iterations'], epoch_us(start) / 1e6 AS began, elapsed_s, argv[1].argv, environment"
            launches = archive.open(folder / "a").sql(f"SELECT {columns} FROM attempts ORDER BY start").fetchall()
            ends = [began for _, began, *_ in launches[1:]] + [launches[-1][1] + launches[-1][2]]
            for (key, began, _, argv, environment), end in zip(launches, ends, strict=True):
                ours.setdefault(key, []).append(end - began)
                theirs.setdefault(key, []).append(bare(argv, environment, folder))
    whole = sum(map(min, ours.values()))
    ratio, saved = whole / sum(map(min, theirs.values())), one_by_one() / whole
    return [
        Figure(
            "20 sizes × 5 combinations of IMB against the bare launches", f"{ratio:.3f} ×", "≤ 1.05 ×", ratio <= 1.05
        ),
        Figure("the same against one launch per point", f"{saved:.1f} × less", "≥ 5 × less", saved >= 5),
    ]


def bare(argv: Sequence[str], environment: dict[str, str], folder: Path) -> float:
    """One launch without us, in seconds: the archived command, its list of sizes laid down again."""
    (folder / "sizes").write_text("\n".join(map(str, SIZES)) + "\n")
    words = [str(folder / "sizes") if argv[at - 1] == "-msglen" else word for at, word in enumerate(argv)]
    start = time.perf_counter()
    subprocess.run(words, env={**os.environ, **LIBRARY, **environment}, capture_output=True, check=True)
    return time.perf_counter() - start


def one_by_one() -> float:
    """Seconds for one bare launch per point."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        total = 0.0
        for iterations in (200, 400, 600, 800, 1000):
            for size in SIZES:
                (folder / "size").write_text(f"{size}\n")
                words = [
                    BIN / "mpiexec",
                    "-n",
                    2,
                    BIN / "IMB-MPI1",
                    "-npmin",
                    2,
                    "-iter",
                    iterations,
                    "-iter_policy",
                    "off",
                ]
                words += ["-msglen", folder / "size", "Allreduce"]
                start = time.perf_counter()
                subprocess.run(list(map(str, words)), env={**os.environ, **LIBRARY}, capture_output=True, check=True)
                total += time.perf_counter() - start
        return total


def planning() -> list[Figure]:
    """A million points, in a process of its own."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests/performance/plan.py"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    figures = []
    for line in done.stdout.splitlines():
        row = json.loads(line)
        how = "with `where`" if row["where"] else "plain"
        measured = f"{row['seconds']} s, {row['peak_gb']} GB"
        figures.append(
            Figure(
                f"1,000,000 points planned, {how}",
                measured,
                "< 10 s, < 1 GB",
                row["seconds"] < 10 and row["peak_gb"] < 1,
            )
        )
    return figures


BARE_SQL = "import duckdb; print(duckdb.sql('select 1'))"


def start_up() -> list[Figure]:
    """`sweep --help`, and `sweep sql "select 1"` beside a bare DuckDB, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a").mkdir()
        commands: dict[str, list[object]] = {
            "help": [BIN / "sweep", "--help"],
            "sql": [BIN / "sweep", "sql", "--archive", folder / "a", "select 1"],
            "bare": [sys.executable, "-c", BARE_SQL],
        }
        times: dict[str, list[float]] = {key: [] for key in commands}
        for _ in range(21):
            for key, words in commands.items():
                start = time.perf_counter()
                subprocess.run(list(map(str, words)), capture_output=True, check=True, cwd=folder)
                times[key].append(time.perf_counter() - start)
    median = {key: statistics.median(each) for key, each in times.items()}
    ratio = median["sql"] / median["bare"]
    return [
        Figure("`sweep --help`", f"{median['help']:.2f} s", "≤ 0.3 s", median["help"] <= 0.3),
        Figure('`sweep sql "select 1"` against bare DuckDB', f"{ratio:.2f} ×", "≤ 1.5 ×", ratio <= 1.5),
    ]


def kills() -> list[Figure]:
    """SIGKILL of the driver at 50 random moments, each followed by a resume."""
    script = ROOT / "tests/performance/kills.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT)
    row = json.loads(done.stdout.splitlines()[-1])
    bad = row["lost"] + row["doubled"] + row["left"]
    measured = f"{row['lost']} rows lost, {row['doubled']} doubled, {row['left']} processes left"
    return [Figure(f"{row['kills']} SIGKILLs of the driver, each resumed", measured, "0, 0, 0", bad == 0)]


PEERS = ("jube", "reframe", "reframe_serial", "ray_tune", "ray_tasks")


def peers(folder: Path) -> list[Figure]:
    """Other tools on 100 no-op trials, in turn with us: ms per trial, theirs with their start, ours without."""
    cost: dict[str, list[float]] = {"ours": []}
    for _ in range(3):
        cost["ours"].append(noops(1000)[0])
        words = [sys.executable, folder / "run.py", "-r", "1", *PEERS]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
        for row in map(json.loads, done.stdout.splitlines()):
            inside = row.get("sweep_only_ms_per_trial", row.get("wall_ms_per_trial"))
            if inside is not None:
                cost.setdefault(row["name"], []).append(inside)
    median = {name: statistics.median(each) for name, each in cost.items()}
    best = min(value for name, value in median.items() if name.startswith(("jube", "reframe")))
    shown = ", ".join(f"{name} {value:.1f}" for name, value in median.items())
    ratio = best / median["ours"]
    return [Figure(f"ms per no-op trial: {shown}", f"{ratio:.1f} × less than JUBE and ReFrame", "≥ 5 ×", ratio >= 5)]


BENCHES: dict[str, Callable[[], list[Figure]]] = {
    "overhead": overhead,
    "coalescing": coalescing,
    "planning": planning,
    "start-up": start_up,
    "kills": kills,
}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
