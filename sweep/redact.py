"""Secrets never reach a row: what is one by its name, and every place where its value stands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from schemas.spec import Spec, Way

REDACTED = "<redacted>"

_NAME = (
    r"(?:[\w.-]*[-_.]|[\w.-]*(?<=[a-z])(?=[A-Z])|)"
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|auth|credentials?|bearer|(?:api|access|private|secret|auth)[-_]?key)"
)
"""A name whose last part says what it is: HF_TOKEN, --api-key, dbPassword; not tokenizer, max_tokens, TOKEN_COUNT."""
_SECRET = re.compile(_NAME, re.IGNORECASE)
_OPTION = re.compile(rf"--?{_NAME}", re.IGNORECASE)
_INSIDE = re.compile(
    rf"""(?<![\w.-]){_NAME}["']?\s*=\s*["']?(?P<value>[^\s"';&|]+)"""
    r"|authorization:\s*(?:\w+\s+)?(?P<header>[^\s\"';&|]+)"
    r"|\w+://(?P<user>[^\s/@]+)@",
    re.IGNORECASE,
)
_SHORTEST = 4
"""A shorter value is redacted where its name stands, and nowhere else: it would black out half of every text."""


def is_secret(name: str) -> bool:
    """Whether a variable, key or option of that name holds a secret."""
    return _SECRET.fullmatch(name.lstrip("-")) is not None


def redact(name: str, value: str) -> str:
    """A value whose name says that it is a secret, or in which one stands, without it."""
    return REDACTED if is_secret(name) else redact_text(value)


def redact_argv(argv: Iterable[str]) -> Iterator[str]:
    """Words of a command line: `--token=x`, `--token x`, `TOKEN=x`, `https://user:pass@host` without the secrets."""
    hide = False
    for word in argv:
        yield REDACTED if hide else redact_text(word)
        hide = _OPTION.fullmatch(word) is not None and not hide


def redact_text(text: str) -> str:
    """A text without the secrets that it names."""
    for value in reversed([each.span(each.lastgroup or 0) for each in _INSIDE.finditer(text)]):
        text = text[: value[0]] + REDACTED + text[value[1] :]
    return text


def redacted(declared: Mapping[str, object]) -> dict[str, object]:
    """A setup's declaration without secrets."""
    env, args, setup = declared.get("env"), declared.get("args"), declared.get("setup")
    return {
        **declared,
        "env": {name: redact(name, str(value)) for name, value in env.items()} if isinstance(env, Mapping) else env,
        "args": list(redact_argv(map(str, args))) if isinstance(args, list) else args,
        "setup": [redact_text(str(line)) for line in setup] if isinstance(setup, list) else setup,
    }


class Mask:
    """The secrets that a spec and its site declare, taken out of every text of a row wherever they stand."""

    def __init__(self, spec: Spec) -> None:
        values = sorted({each for each in _declared(spec) if len(each) >= _SHORTEST}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, values))) if values else None

    def rows(self, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> Mapping[str, Sequence[Mapping[str, object]]]:
        """Rows of tables without the secrets."""
        if self._pattern is None:
            return rows
        return {
            table: [{key: self._clean(value) for key, value in row.items()} for row in rows[table]] for table in rows
        }

    def _clean(self, value: object) -> object:
        if isinstance(value, str):
            assert self._pattern is not None
            return self._pattern.sub(REDACTED, value)
        if isinstance(value, Mapping):
            return {key: self._clean(each) for key, each in value.items()}
        return [self._clean(each) for each in value] if isinstance(value, list) else value


def _declared(spec: Spec) -> Iterator[str]:
    """Every secret of the environments, arguments, lines and parameters."""
    for way in (spec.site.way, *(each for levels in spec.site.levels.values() for each in levels.values())):
        yield from _of_way(way)
    for name, levels in spec.factors.items():
        for level in levels:
            if is_secret(name.removeprefix("env.")):
                yield str(level)
            elif isinstance(level, str):
                yield from _of_command(level)


def _of_way(way: Way) -> Iterator[str]:
    for name, value in way.env.items():
        if is_secret(name):
            yield value
        else:
            yield from _inside(value)
    yield from _of_words(way.args)
    for line in way.setup:
        yield from _of_command(line)


def _of_command(text: str) -> Iterator[str]:
    yield from _inside(text)
    try:
        yield from _of_words(shlex.split(text))
    except ValueError:  # no command line
        return


def _of_words(argv: Sequence[str]) -> Iterator[str]:
    for word, shown in zip(argv, redact_argv(argv), strict=True):
        yield from _inside(word) if shown != REDACTED else (word,)


def _inside(text: str) -> Iterator[str]:
    for match in _INSIDE.finditer(text):
        yield match[match.lastgroup or 0]
