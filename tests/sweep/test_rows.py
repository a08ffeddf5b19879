"""What reaches a row: bounded output, levels as text, and no secret."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.attempt import Line, Stream
from schemas.spec import Site, Spec, Way, text
from sweep.redact import REDACTED, Mask, is_secret, redact, redact_argv, redact_text, redacted
from sweep.rows import bounded, utf8

LINES = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30), max_size=30)


@given(LINES, st.integers(0, 300))
def test_bounded_keeps_head_and_tail_within_the_limit_and_says_when_it_cut(said: list[str], limit: int) -> None:
    stream = Stream("ranks", 0, "stdout", tuple(Line(at, line) for at, line in enumerate(said)), size=7)
    kept, cut = bounded(stream, limit)
    size = sum(len(line.encode()) + 1 for line in said)
    assert cut == (size > limit)
    assert sum(len(line.text.encode()) + 1 for line in kept.lines) <= max(limit, 0 if cut else size)
    numbers = [int(line.t) for line in kept.lines]
    head = next((at for at, number in enumerate(numbers) if at != number), len(numbers))
    assert numbers == [*range(head), *range(len(said) - (len(numbers) - head), len(said))]
    if cut:  # no line more would have fitted into either half
        sizes = [len(line.encode()) + 1 for line in said]
        assert sum(sizes[:head]) <= limit // 2 < sum(sizes[: head + 1])


LEVELS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20))


@given(LEVELS, LEVELS)
def test_levels_that_differ_are_different_texts(one: object, other: object) -> None:
    """But for a text that is spelt like a number: that is the user's own wish."""
    same = type(one) is type(other) and one == other
    if not (isinstance(one, str) ^ isinstance(other, str)):
        shown = text(one), text(other)  # type: ignore[arg-type]  # levels, as hypothesis draws them
        assert (shown[0] == shown[1]) == same or (one == other == 0)


def test_levels_are_spelt_as_json_spells_them() -> None:
    assert [text(each) for each in (True, 1, 1.0, "1", "on", 1e-9)] == ["true", "1", "1.0", "1", "on", "1e-09"]


SECRET = """
TOKEN HF_TOKEN --token -token --api-key API_KEY apiKey AWS_SECRET_ACCESS_KEY DB_PASSWORD passwd dbPassword
REDIS_AUTH client-secret GITHUB.TOKEN credentials PRIVATE_KEY PASSPHRASE
"""
HARMLESS = """
tokens_per_second max_tokens TOKENIZERS_PARALLELISM tokenizer --token-count AUTHOR authority KEY sort_key PASSIVE
UCX_TLS NCCL_ALGO message_size match.tokens_per_second OMP_WAIT_POLICY TOKEN_FILE
"""


def test_secrets_are_known_by_the_last_part_of_their_name() -> None:
    assert [name for name in SECRET.split() if not is_secret(name)] == []


def test_what_only_resembles_a_secret_is_archived() -> None:
    assert [name for name in HARMLESS.split() if redact(name, "value") != "value"] == []


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("train --token abc --batch 3", "train --token <redacted> --batch 3"),
        ("train --token=abc x", "train --token=<redacted> x"),
        ("env API_KEY=abc train", "env API_KEY=<redacted> train"),
        ("srun --export=ALL,HF_TOKEN=abc train", "srun --export=ALL,HF_TOKEN=<redacted> train"),
        ("mpiexec -genv DB_PASSWORD=abc -n 2 x", "mpiexec -genv DB_PASSWORD=<redacted> -n 2 x"),
        ("git clone https://user:abc@host/path", "git clone https://<redacted>@host/path"),
        ("train --token", "train --token"),
        ("train --token --token abc", "train --token <redacted> abc"),
        ("train --max-tokens 512 --tokenizer gpt2", "train --max-tokens 512 --tokenizer gpt2"),
    ],
)
def test_a_command_line_without_its_secrets(argv: str, shown: str) -> None:
    assert list(redact_argv(argv.split(" "))) == shown.split(" ")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('curl -H "Authorization: Bearer abc.def" x', 'curl -H "Authorization: Bearer <redacted>" x'),
        ("export HF_TOKEN='abc'; run", "export HF_TOKEN='<redacted>'; run"),
        ('env = { HF_TOKEN = "abc", UCX_TLS = "tcp" }', 'env = { HF_TOKEN = "<redacted>", UCX_TLS = "tcp" }'),
        ("[env]\nDB_PASSWORD = 'abc'", "[env]\nDB_PASSWORD = '<redacted>'"),
        ("tokens = 5", "tokens = 5"),
    ],
)
def test_a_text_without_its_secrets(line: str, shown: str) -> None:
    assert redact_text(line) == shown


SECRETS = st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=12, max_size=30)


@given(st.lists(st.text(max_size=10)), SECRETS, st.sampled_from(["--token={}", "TOKEN={}", "--x=API_KEY={}"]))
def test_no_word_keeps_a_secret_wherever_it_stands(words: list[str], secret: str, form: str) -> None:
    argv = [*words, form.format(secret), "--password", secret, *words]
    shown = list(redact_argv(argv))
    assert len(shown) == len(argv)
    assert secret not in " ".join(shown[len(words) : len(words) + 3])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)))
def test_words_that_name_no_secret_stay_as_they_are(words: list[str]) -> None:
    plain = [word for word in words if not re.search(r"(?i)token|secret|pass|pwd|auth|cred|bearer|key|://", word)]
    assert list(redact_argv(plain)) == plain


@given(SECRETS, SECRETS, SECRETS)
def test_a_mask_takes_declared_secrets_out_of_every_value(one: str, two: str, three: str) -> None:
    spec = Spec(
        name="x",
        factors={"env.HF_TOKEN": (one,), "command.argv": (f"train --password {two} --batch {{batch}}",)},
        site=Site(way=Way(env={"A_SECRET": three, "UCX_TLS": "tcp"})),
    )
    row = {
        "text": f"a {one} b {two}",
        "map": {"x": f"{three}!", "tls": "tcp"},
        "argv": [{"argv": [two, "y"]}],
        "number": 3,
        "nothing": None,
    }
    [[clean]] = Mask(spec).rows({"outputs": [row]}).values()
    assert not any(each in json.dumps(clean, ensure_ascii=False) for each in (one, two, three))
    assert clean["map"] == {"x": f"{REDACTED}!", "tls": "tcp"}
    assert (clean["number"], clean["nothing"]) == (3, None)


def test_a_setup_is_declared_without_secrets() -> None:
    shown = redacted(
        {"env": {"HF_TOKEN": "abc", "A": "b"}, "args": ["--token", "abc"], "setup": ["export T_TOKEN=abc"]}
    )
    assert shown == {
        "env": {"HF_TOKEN": REDACTED, "A": "b"},
        "args": ["--token", REDACTED],
        "setup": [f"export T_TOKEN={REDACTED}"],
    }


@given(st.binary())
def test_any_argument_can_be_archived(raw: bytes) -> None:
    assert utf8(raw.decode("utf-8", "surrogateescape")) == raw.decode("utf-8", "replace")
