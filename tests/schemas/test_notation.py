"""Numbers as people write them are read exactly, or refused with what would be right."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import notation
from schemas.errors import InputError

COUNTS = st.integers(min_value=0, max_value=notation.LARGEST)


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        read()
    problem = caught.value.problems[0]
    assert problem.remedy, "every refusal says what would be right"
    assert "\n" not in str(problem)
    return str(problem)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64K", 65536),
        ("64Ki", 65536),
        ("64KiB", 65536),
        ("64kB", 64000),
        ("1M", 1048576),
        ("1MiB", 1048576),
        ("1MB", 1000000),
        ("1 GiB", 1073741824),
        ("1GB", 1000000000),
        ("2T", 2 * 1024**4),
        ("1PB", 10**15),
        ("8B", 8),
        ("1.5M", 1572864),
        ("0.5K", 512),
        ("1.5kB", 1500),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_bare_letters_are_binary_and_kb_mb_gb_decimal(text: str, value: int) -> None:
    assert notation.parse_number(text) == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a number"),
        ("-1", "is not a number; write a whole number from 0 on"),
        ("+5", "is not a number"),
        ("1e6", "is not a number"),
        ("0x10", "is not a number"),
        ("1_000", "is not a number"),
        ("٣", "is not a number"),
        ("nan", "is not a number"),
        ("4m", 'write "4M"'),
        ("4Mb", 'write "4MB"'),
        ("64kib", 'write "64KiB"'),
        ("64KB", "write 64KiB for 1024 or 64kB for 1000"),
        ("64Q", "K M G T P and KiB"),
        ("1.3K", "is not a whole number, it is 1331.2"),
        ("9223372036854775808", "is too large; at most 9223372036854775807 (2^63-1)"),
        ("8192P", "is too large"),
        ("9" * 5000, "is too long for a number"),
    ],
)
def test_a_bad_number_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    assert said in refusal(lambda: notation.parse_number(text))


@given(COUNTS)
def test_every_number_survives_being_written_and_read(value: int) -> None:
    text = notation.format_number(value)
    assert notation.parse_number(text) == value
    assert len(text) <= len(str(value))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1:16", (1, 2, 4, 8, 16)),
        ("3:20", (3, 6, 12)),
        ("2:4", (2, 4)),
        ("5:5", (5,)),
        ("1:5:+2", (1, 3, 5)),
        ("0:4:+2", (0, 2, 4)),
        ("8:1K:x4", (8, 32, 128, 512)),
        ("0,64:256:+64", (0, 64, 128, 192, 256)),
        ("0, 1:4 , 1K", (0, 1, 2, 4, 1024)),
        ("64,8", (64, 8)),
        ("1:8,2:4", (1, 2, 4, 8)),
    ],
)
def test_ranges_double_add_and_multiply(text: str, values: tuple[int, ...]) -> None:
    assert notation.parse_numbers(text) == values


def test_a_range_over_sizes_ends_at_its_last_size() -> None:
    sizes = notation.parse_numbers("1:4M")
    assert (sizes[0], sizes[-1], len(sizes)) == (1, 4 * 1024**2, 23)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4M:1", 'runs backwards; write "1:4M"'),
        ("8:2:+1", 'write "2:8:+1"'),
        ("0:8", 'never leaves 0, whatever it is multiplied by; write "0,1:8"'),
        ("1:8:+0", "never ends"),
        ("1:8:x1", "never ends"),
        ("1:8:x0", "never ends"),
        ("1:8:+-1", "is not a number"),
        ("1:8:-1", "is not a range"),
        ("1:8:2", "is not a range"),
        ("1:2:3:4", "is not a range"),
        ("1:", "is not a number"),
        (":8", "is not a number"),
        (",", "is not a number"),
        ("1:9223372036854775808", "is too large"),
        ("0:1P:+1", "too many"),
        ("0:10000000:+1", "too many"),
        ("0:9M:+1,20M:29M:+1", "too many"),
    ],
)
def test_a_bad_range_is_refused_with_what_would_be_right(text: str, said: str) -> None:
    assert said in refusal(lambda: notation.parse_numbers(text))


def test_ten_million_values_are_the_most() -> None:
    assert len(notation.parse_numbers("1:10000000:+1")) == notation.MOST


@given(first=st.integers(1, 10**6), last=st.integers(1, 2**62), factor=st.integers(2, 1000))
def test_a_multiplying_range_ascends_inside_its_bounds_by_its_factor(first: int, last: int, factor: int) -> None:
    first, last = sorted((first, last))
    values = notation.parse_numbers(f"{first}:{last}:x{factor}")
    assert values[0] == first
    assert values[-1] <= last < values[-1] * factor
    assert all(after == before * factor for before, after in itertools.pairwise(values))


@given(first=st.integers(0, 2**62), count=st.integers(0, 300), step=st.integers(1, 2**50), slack=st.integers(0, 2**50))
def test_an_adding_range_ascends_inside_its_bounds_by_its_step(first: int, count: int, step: int, slack: int) -> None:
    last = first + count * step + slack % step
    assert notation.parse_numbers(f"{first}:{last}:+{step}") == tuple(first + each * step for each in range(count + 1))


@given(st.lists(COUNTS, min_size=1, max_size=20))
def test_a_list_and_its_notation_name_the_same_numbers_each_once(values: list[int]) -> None:
    once = tuple(dict.fromkeys(values))
    assert notation.numbers(values) == once
    assert notation.parse_numbers(",".join(map(notation.format_number, values))) == once
    assert notation.numbers([str(value) for value in values]) == once


@given(st.text(alphabet="0123456789.:,+x-KMGiB m", max_size=14))
def test_any_text_is_unique_numbers_within_bounds_or_a_clear_refusal(text: str) -> None:
    try:
        values = notation.parse_numbers(text)
    except InputError:
        assert refusal(lambda: notation.parse_numbers(text))
    else:
        assert 0 < len(values) == len(set(values)) <= notation.MOST
        assert all(0 <= value <= notation.LARGEST for value in values)


def test_every_wrong_part_of_a_notation_is_reported() -> None:
    with pytest.raises(InputError) as caught:
        notation.numbers(["4m", 8, "1,x:2", True])
    assert len(caught.value.problems) == 3


def test_lists_mix_numbers_and_notations() -> None:
    assert notation.numbers([8, 4096, "1M"]) == (8, 4096, 1048576)
    assert notation.numbers(["1:4", 4, 8]) == (1, 2, 4, 8)
    assert notation.numbers(7) == (7,)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "true is not a whole number"),
        (8.0, "8.0 is not a whole number"),
        ([[8]], "[8] is not a whole number"),
        ({"a": 1}, "is not a whole number"),
        (-1, "-1 is negative"),
        (2**63, "is too large"),
    ],
)
def test_only_whole_numbers_from_zero_on_are_numbers(value: object, said: str) -> None:
    assert said in refusal(lambda: notation.numbers(value))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("100ms", 0.1),
        ("250us", 0.00025),
        ("2s", 2.0),
        ("15m", 900.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("1d2h3m4s5ms", 93784.005),
        (0, 0.0),
    ],
)
def test_durations_are_read_in_seconds(value: object, seconds: float) -> None:
    assert notation.parse_duration(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "30m1h",
        "5m5m",
        "1h 30m",
        "10 minutes",
        "-5s",
        "1e3s",
        True,
        None,
        [],
        -1,
        float("nan"),
        float("inf"),
        10**400,
        "400d",
        "9" * 30,
        "9" * 400 + "s",
    ],
)
def test_a_bad_duration_is_refused_with_examples(value: object) -> None:
    assert '"1h30m"' in refusal(lambda: notation.parse_duration(value))


@given(st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{milliseconds}ms"
    assert notation.parse_duration(text) == pytest.approx(3600 * hours + 60 * minutes + seconds + milliseconds / 1000)


def test_a_range_of_durations_has_two_ends() -> None:
    assert notation.parse_duration_range("2s..60s") == (2.0, 60.0)
    assert notation.parse_duration_range("100ms .. 1m") == (0.1, 60.0)
    assert notation.parse_duration_range("5s") == (5.0, 5.0)
    assert notation.parse_duration_range(3) == (3.0, 3.0)
    assert 'write "2s..60s"' in refusal(lambda: notation.parse_duration_range("60s..2s"))
    assert "is not a duration" in refusal(lambda: notation.parse_duration_range("2s.."))


@pytest.mark.parametrize(("value", "fraction"), [("3%", 0.03), ("0.5 %", 0.005), ("99.9%", 0.999)])
def test_percentages_are_fractions(value: str, fraction: float) -> None:
    assert notation.parse_percentage(value) == pytest.approx(fraction)


@pytest.mark.parametrize("value", ["3", 3, 0.03, "0%", "100%", "-1%", "1e1%", "%", "", None])
def test_a_bad_percentage_is_refused_with_an_example(value: object) -> None:
    assert '"3%"' in refusal(lambda: notation.parse_percentage(value))
