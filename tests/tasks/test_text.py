"""Peeling: what launchers, terminals and job systems put around lines comes off, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.attempt import Line
from tasks.text import peel


def lines(*texts: str) -> list[Line]:
    return [Line(at / 10, text) for at, text in enumerate(texts)]


def texts(given: list[Line]) -> list[str]:
    return [line.text for line in given]


def bare(given: list[Line]) -> list[tuple[float, str]]:
    """Open MPI 5 puts a blank behind its tag, and 4 does not: a leading blank may be lost."""
    return [(line.t, line.text.lstrip(" ")) for line in given]


OWN = st.lists(st.text(st.characters(codec="ascii", categories=("L", "N", "Zs", "Sm", "Po"), exclude_characters="&<>")))
"""Lines as programs write them; what looks like a prefix itself is another matter."""

WRAPPINGS: dict[str, Callable[[str], str]] = {
    "carriage return": "{}\r".format,
    "colour": "\x1b[2;35m{}\x1b[0m".format,
    "window title": "\x1b]0;sweep\x07{}".format,
    "Open MPI 4 --tag-output": "[1,0]<stdout>:{}".format,
    "Open MPI 4 --timestamp-output": "Tue Dec  1 01:47:18 2026[1,0]<stdout>:{}".format,
    "Open MPI 4 --xml": '<stdout rank="0">{}&#010;</stdout>'.format,
    "Open MPI 5 --output rank": "[0]<stdout>: {}".format,
    "Open MPI 5 --output tag": "[1,0]<stderr>: {}".format,
    "Open MPI 5 --output tag-detailed": "[1,0][node01:668]<stdout>: {}".format,
    "Open MPI 5 --output tag,timestamp": "[Tue Dec  1 01:52:10 2026][1,0]<stdout>: {}".format,
    "Hydra -l": "[12] {}".format,
    "Hydra -prepend-pattern": "[0@node-01.example] {}".format,
    "torchrun": "[rank0]: {}".format,
    "torchrun --tee": "[default3]:{}".format,
    "Jenkins": "05:12:59  {}".format,
    "Jenkins around Open MPI": "05:12:59  [1,0]<stdout>:{}".format,
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS)
def test_every_wrapping_comes_off_and_the_stamp_stays(wrap: Callable[[str], str]) -> None:
    own = ("#bytes #repetitions", "       4096          100         0.40     10265.81", "", "# end")
    assert bare(peel(lines(*map(wrap, own)))) == bare(lines(*own))


@settings(deadline=None)
@given(own=OWN, wrap=st.sampled_from(sorted(WRAPPINGS)))
def test_wrapped_lines_are_peeled_to_what_unwrapped_lines_are(own: list[str], wrap: str) -> None:
    assert bare(peel(lines(*map(WRAPPINGS[wrap], own)))) == bare(peel(lines(*own)))


@settings(deadline=None)
@given(own=st.lists(st.text()))
def test_peeling_twice_is_peeling_once(own: list[str]) -> None:
    once = peel(lines(*own))
    if not any(text.lstrip().startswith("0:") for text in texts(once)):  # labels of labels are text
        assert peel(once) == once


@settings(deadline=None)
@given(own=st.lists(st.text(st.characters(exclude_characters="\r\x1b[]<>:"))))
def test_lines_without_a_prefix_stay_as_they_are(own: list[str]) -> None:
    assert peel(lines(*own)) == lines(*own)


def test_a_prefix_before_every_write_comes_off_inside_the_line_too() -> None:
    given = lines("[0] 8         [0]               0.66[0]               0.57          5[0] ", "[0] #[0] -[0] -[0]")
    assert texts(peel(given)) == ["8                       0.66              0.57          5", "#--"]


def test_intels_debug_lines_lose_only_their_rank() -> None:
    assert texts(peel(lines("[0] MPI startup(): libfabric provider: tcp"))) == [
        "MPI startup(): libfabric provider: tcp"
    ]


def test_a_progress_bar_becomes_lines_of_one_stamp() -> None:
    assert peel([Line(1.5, "10%\r50%\r100%\r")]) == [Line(1.5, "10%"), Line(1.5, "50%"), Line(1.5, "100%")]


def test_sruns_labels_come_off_where_every_line_has_one() -> None:
    assert texts(peel(lines("0: # Size", "0: 1  0.5", "0: ", "1: late", "srun: error: x"))) == [
        "# Size",
        "1  0.5",
        "",
        "late",
        "srun: error: x",
    ]
    wide = lines(*(f"{rank:2}: hello" for rank in (0, 0, *range(1, 12))))
    assert set(texts(peel(wide))) == {"hello"}


@pytest.mark.parametrize(
    "own",
    [
        ("Now starting the main loop", "  0:       1 bytes 322638 times", "  1:       2 bytes  44443 times"),  # NetPIPE
        ("1024: 3.5", "2048: 7.1"),
        ("0: 1.5", "1: 2.5", "2: 3.5"),
        ("[  5]   0.00-1.00   sec", "12:30:01 INFO step 3", "[a.c:12] x"),
        ("# Rank  0 Group  0 Pid   345 on node01 device  0 [0x19]",),
        ("[1796102112.862551] [node01:17116:0]     ucp_context.c:1381 UCX  WARN  x",),
    ],
)
def test_what_a_program_prints_itself_is_no_label(own: tuple[str, ...]) -> None:
    assert texts(peel(lines(*own))) == list(own)


def test_pdshs_host_names_come_off_for_hosts_that_we_know() -> None:
    given = lines("node01: # Size", "node02: time: 3")
    assert texts(peel(given, hosts=("node01", "node02"))) == ["# Size", "time: 3"]
    assert peel(given) == given
