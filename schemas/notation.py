"""Numbers as people write them: sizes, ranges, durations, percentages.

One rule for suffixes, everywhere: K M G T P, Ki Mi … and KiB MiB … are binary (powers of 1024), which is how the
benchmarks of this field read them; kB MB GB TB PB are decimal (powers of 1000). Case matters.

Everything here raises InputError whose problems say what is wrong and what would be right, and have no place yet:
the caller knows the file and the key.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction

from schemas.errors import InputError, Problem

LARGEST = 2**63 - 1
"""The largest number that an archive column holds."""

MOST = 10_000_000
"""The most values that one factor may have."""

_PREFIXES = "KMGTP"
_UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    **{prefix + ending: 1024**power for power, prefix in enumerate(_PREFIXES, start=1) for ending in ("", "i", "iB")},
    **{("k" if prefix == "K" else prefix) + "B": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)},
}
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_LONGEST = 40  # characters: enough for every number below LARGEST

_DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(us|ms|[dhms])")
_LONGEST_DURATION = 366 * 86400.0

_RANGE_HELP = '"a:b" doubles, "a:b:+k" adds k, "a:b:xk" multiplies by k, commas join: "0,64:1K:+64"'
_SUFFIX_HELP = "K M G T P and KiB MiB … are powers of 1024, kB MB GB TB PB are powers of 1000"
_DURATION_HELP = 'write seconds as a number, or "100ms", "90s", "15m", "1h30m", "2d"'


def parse_number(text: str) -> int:
    """Read a whole number from 0 to 2^63-1 with an optional suffix: "4096", "64K", "1.5MiB", "1GB"."""
    text = text.strip()
    if len(text) > _LONGEST:
        raise _wrong(f"{text[:_LONGEST]}… is too long for a number", f"at most {LARGEST} (2^63-1)")
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _wrong(f"{text!r} is not a number", 'write a whole number from 0 on, such as 4096, "64K" or "1GiB"')
    digits, suffix = match.groups()
    if suffix not in _UNITS:
        raise _wrong(f"{text!r} has an unknown suffix {suffix!r}", _suffix_remedy(digits, suffix))
    value = Fraction(digits) * _UNITS[suffix]
    if value.denominator != 1:
        raise _wrong(f"{text!r} is not a whole number, it is {float(value):g}", "write a whole number")
    if value > LARGEST:
        raise _wrong(f"{text!r} is too large", f"at most {LARGEST} (2^63-1)")
    return int(value)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read a notation's numbers, each once, in the order written: "1:4M", "8:1G:x4", "0,64:1K:+64", "4096".

    `a:b` doubles from a up to b, b included if it is reached; `a:b:+k` adds k; `a:b:xk` multiplies by k.
    """
    return _joined([text])


def numbers(value: object) -> tuple[int, ...]:
    """Read a TOML value's numbers: a number, a notation, or a list of both; each once, in the order written."""
    return _joined(value if isinstance(value, list) else [value])


def format_number(value: int) -> str:
    """Write a number in its shortest notation, which `parse_number` reads back: 4194304 is "4M", 1500 is "1500"."""
    for power in range(len(_PREFIXES), 0, -1):
        if value and value % 1024**power == 0:
            return f"{value // 1024**power}{_PREFIXES[power - 1]}"
    return str(value)


def parse_duration(value: object) -> float:
    """Read seconds from a number or a text: 90, 0.5, "90", "100ms", "1h30m"; at most a year."""
    seconds = _seconds(value)
    if not 0 <= seconds <= _LONGEST_DURATION:
        raise _wrong(f"{value} is not a duration between 0 and a year", _DURATION_HELP)
    return seconds


def parse_duration_range(value: object) -> tuple[float, float]:
    """Read the shortest and the longest duration in seconds from "2s..60s"; a single duration is both."""
    if not isinstance(value, str) or ".." not in value:
        single = parse_duration(value)
        return single, single
    first, _, last = value.partition("..")
    low, high = parse_duration(first), parse_duration(last)
    if low > high:
        raise _wrong(f"{value!r} runs backwards", f'write "{last.strip()}..{first.strip()}"')
    return low, high


def parse_percentage(value: object) -> float:
    """Read a fraction above 0 and below 1 from a text with a percent sign: "3%" is 0.03."""
    match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,9})?)\s*%", value.strip()) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) < 100:
        raise _wrong(f"{value!r} is not a percentage between 0 and 100", 'write a text with the sign, such as "3%"')
    return float(match[1]) / 100


def _joined(values: Sequence[object]) -> tuple[int, ...]:
    parts: list[Sequence[int]] = []
    problems: list[Problem] = []
    for value in values:
        for text in value.split(",") if isinstance(value, str) else (value,):
            try:
                parts.append(_part(text) if isinstance(text, str) else (_plain(text),))
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(problems)
    # counted before anything is built: "0:1P:+1" must not fill the memory first
    if (total := sum(map(len, parts))) > MOST:
        raise _wrong(f"{total:,} values are too many", f"at most {MOST:,}; take a larger step")
    return tuple(dict.fromkeys(itertools.chain.from_iterable(parts)))


def _plain(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        shown = str(value).lower() if isinstance(value, bool) else repr(value)
        raise _wrong(f"{shown} is not a whole number", f"write a number or a notation: {_RANGE_HELP}")
    if value < 0:
        raise _wrong(f"{value} is negative", "write a whole number from 0 on")
    if value > LARGEST:
        raise _wrong(f"{str(value)[:_LONGEST]} is too large", f"at most {LARGEST} (2^63-1)")
    return value


def _part(text: str) -> Sequence[int]:
    """Read the values of one part between commas."""
    ends = [each.strip() for each in text.split(":")]
    if len(ends) == 1:
        return (parse_number(text),)
    step = re.fullmatch(r"([+x])\s*(.*)", ends[2]) if len(ends) == 3 else None
    if len(ends) > 3 or (len(ends) == 3 and step is None):
        raise _wrong(f"{text.strip()!r} is not a range", _RANGE_HELP)
    first, last = parse_number(ends[0]), parse_number(ends[1])
    if first > last:
        raise _wrong(f"{text.strip()!r} runs backwards", f'write "{":".join([ends[1], ends[0], *ends[2:]])}"')
    if step is not None and step[1] == "+":
        return _added(text, first, last, parse_number(step[2]))
    return _multiplied(text, first, last, 2 if step is None else parse_number(step[2]))


def _added(text: str, first: int, last: int, step: int) -> Sequence[int]:
    if step == 0:
        raise _wrong(f"{text.strip()!r} never ends: its step is 0", 'add at least 1, as in "0:8:+1"')
    count = (last - first) // step + 1
    if count > MOST:
        raise _wrong(
            f"{text.strip()!r} has {count:,} values, which is too many", f"at most {MOST:,}; take a larger step"
        )
    return range(first, last + 1, step)


def _multiplied(text: str, first: int, last: int, factor: int) -> Sequence[int]:
    if factor < 2:
        raise _wrong(
            f"{text.strip()!r} never ends: it multiplies by {factor}", 'multiply by at least 2, as in "8:1G:x4"'
        )
    if first == 0:
        rest = text.strip().partition(":")[2]
        raise _wrong(f"{text.strip()!r} never leaves 0, whatever it is multiplied by", f'write "0,1:{rest}"')
    values = []
    while first <= last:
        values.append(first)
        first *= factor
    return values


def _suffix_remedy(digits: str, suffix: str) -> str:
    """Names the nearest suffix that exists; KB is left to the user, for it is used with both meanings."""
    if suffix == "KB":
        return f"write {digits}KiB for 1024 or {digits}kB for 1000"
    near = [unit for unit in _UNITS if unit.lower() == suffix.lower()]
    return f'write "{digits}{near[0]}"; {_SUFFIX_HELP}' if near else _SUFFIX_HELP


def _seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if abs(value) <= _LONGEST_DURATION else -1.0
    text = value.strip() if isinstance(value, str) else ""
    if len(text) > _LONGEST:
        return -1.0
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    parts = _DURATION_PART.findall(text)
    units = [unit for _, unit in parts]
    falling = units == [unit for unit in _DURATION_UNITS if unit in units]
    if not parts or not falling or "".join(map("".join, parts)) != text:
        raise _wrong(f"{value!r} is not a duration", _DURATION_HELP)
    return sum(float(amount) * _DURATION_UNITS[unit] for amount, unit in parts)


def _wrong(what: str, remedy: str) -> InputError:
    return InputError(Problem("", what, remedy))
