"""Peels off what launchers, terminals and job systems put around a program's own lines; stamps stay.

Every form was seen in a genuine output; see docs/benchmarks/imb.md for what the two launchers do inside a line.
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from schemas.attempt import Line

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~])")
"""ECMA-48 control sequences and operating-system commands: colours, cursor moves, window titles."""

_STAMP = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
_PREFIX = re.compile(
    rf"(?:\[{_STAMP}\]|{_STAMP})?\[\d+(?:,\d+)?\](?:\[[^\]\s]+:\d+\])?<std(?:out|err|diag)>: ?"  # Open MPI 4 and 5
    r"|\[[a-z]+\d+\]: ?"  # torchrun
    r"|\d\d:\d\d:\d\d  "  # Jenkins
)
_ELEMENT = re.compile(r'<(std(?:out|err|diag)) rank="\d+">(.*)</\1>')  # Open MPI 4 --xml
_RANK = re.compile(r"\[\d+(?:@[\w.-]+)?\](?: |$)")  # Hydra -l and -prepend-pattern: put before every write
_LABEL = re.compile(r" *(\d+):(?: |$)")  # srun -l
_SLURM = ("srun: ", "slurmstepd")

_START = re.compile(rf"{_PREFIX.pattern}|<std|{_RANK.pattern}|{_LABEL.pattern}")
"""How a line with something to peel off begins."""


def peel(lines: Iterable[Line], *, hosts: Collection[str] = ()) -> list[Line]:
    """The lines as the program wrote them, without carriage returns, escapes and prefixes.

    A carriage return inside a line makes two lines of one stamp. The labels of `srun -l` are peeled only where all
    lines bear one and rank 0 speaks more than once, for programs print "0: …" too; `hosts` names the nodes whose
    names pdsh may have put before a line.
    """
    given = list(lines)
    texts = [line.text for line in given]
    text = "\n".join(texts)
    if not (hosts or "\r" in text or "\x1b" in text or any(map(_START.match, texts))):
        return given
    peeled = [Line(line.t, part) for line in given for part in _parts(line.text, hosts)]
    return _unlabelled(peeled)


def _parts(text: str, hosts: Collection[str]) -> Iterator[str]:
    """One line between carriage returns, each part without escapes and prefixes."""
    parts = text.rstrip("\r").split("\r")
    for part in parts:
        yield _bare(part, hosts)


def _bare(text: str, hosts: Collection[str]) -> str:
    """Without escapes and prefixes, however they are nested."""
    while True:
        before = text
        text = _ESCAPE.sub("", text)
        if match := _PREFIX.match(text):
            text = text[match.end() :]
        elif match := _ELEMENT.fullmatch(text):
            text = html.unescape(match[2]).rstrip("\n")
        elif match := _RANK.match(text):
            text = _without(match[0].rstrip(" "), text)
        elif hosts and text.partition(": ")[0] in hosts:
            text = text.partition(": ")[2]
        if text == before:
            return text


def _without(prefix: str, text: str) -> str:
    """Hydra's prefix out of the whole line: a line that was written in pieces has it before each piece."""
    return text.replace(f"{prefix} ", "").removesuffix(prefix)


def _unlabelled(lines: Sequence[Line]) -> list[Line]:
    """Without srun's labels, if that is what they are."""
    labels = [_LABEL.match(line.text) for line in lines]
    ranks = [int(label[1]) for label in labels if label]
    plain = any(
        line.text and not label and not line.text.startswith(_SLURM) for line, label in zip(lines, labels, strict=True)
    )
    if plain or ranks.count(0) < 2 or len(set(ranks)) != max(ranks) + 1:
        return list(lines)
    return [
        Line(line.t, line.text[label.end() :]) if label else line for line, label in zip(lines, labels, strict=True)
    ]
