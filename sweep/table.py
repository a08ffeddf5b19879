"""One table of a TOML file, asked key by key: a wrong value becomes a problem, an unknown key a suggestion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from schemas.errors import InputError, Problem
from sweep.document import Document, Key, dotted

T = TypeVar("T")


class Table:
    """One table of a document. Each method takes a key, checks its value, and gives None if absent or wrong.

    Whatever was not taken in the end is unknown: `finish` says so.
    """

    def __init__(self, document: Document, key: Key, data: Mapping[str, Any]) -> None:
        self.document = document
        self.key = key
        self._left = dict(data)
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._left

    @property
    def place(self) -> str:
        """Where its keys stand in the file: "under [run]", "under [[include]]", "at the top"."""
        if not self.key:
            return "at the top"
        return f"under [[{dotted(self.key[:-1])}]]" if isinstance(self.key[-1], int) else f"under [{dotted(self.key)}]"

    def left(self) -> tuple[str, ...]:
        """Name the keys not yet taken, in the file's order."""
        return tuple(self._left)

    def take(self, key: str) -> Any:
        """Take a value of any kind."""
        self._known.append(key)
        return self._left.pop(key, None)

    def wrong(self, key: str | int, what: str, remedy: str = "") -> None:
        """Note a problem at a key of this table."""
        self.document.wrong((*self.key, key), what, remedy)

    def parsed(self, key: str, parse: Callable[[object], T]) -> T | None:
        """Take what `parse` makes of the value; its InputError becomes a problem at this key."""
        value = self.take(key)
        if value is None:
            return None
        try:
            return parse(value)
        except InputError as error:
            for problem in error.problems:
                self.wrong(key, problem.what, problem.remedy)
            return None

    def text(self, key: str, *, empty: bool = False) -> str | None:
        """Take a text; an empty or blank one only if `empty`."""
        return self.parsed(key, lambda value: value if empty and isinstance(value, str) else _as_text(value))

    def required(self, key: str, remedy: str) -> str:
        """Take a text that must be there; a problem and an empty text where it is not."""
        if key not in self:
            self._known.append(key)
            self.wrong(key, "is missing", remedy)
            return ""
        return self.text(key) or ""

    def boolean(self, key: str) -> bool | None:
        """Take true or false."""

        def check(value: object) -> bool:
            if not isinstance(value, bool):
                raise refused(value, "write true or false")
            return value

        return self.parsed(key, check)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """Take a list of texts."""
        return self.parsed(key, _as_texts)

    def integer(self, key: str, low: int, high: int = 2**31 - 1) -> int | None:
        """Take a whole number from `low` to `high`."""

        def check(value: object) -> int:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise refused(value, f"write a whole number from {low} to {high}")
            return value

        return self.parsed(key, check)

    def number(self, key: str, low: float, high: float) -> float | None:
        """Take a number from `low` to `high`, whole or not."""

        def check(value: object) -> float:
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
                raise refused(value, f"write a number from {low:g} to {high:g}")
            return float(value)

        return self.parsed(key, check)

    def choice(self, key: str, today: Collection[str], later: Collection[str] = ()) -> str | None:
        """Take one of a few words; those of `later` are refused with "not yet"."""

        def check(value: object) -> str:
            if isinstance(value, str) and value in later:
                raise not_yet(f'"{value}"', f"today: {', '.join(today)}")
            if not isinstance(value, str) or value not in today:
                near = suggestion(value, [*today, *later]) if isinstance(value, str) else ""
                raise refused(value, near or f"one of: {', '.join([*today, *later])}")
            return value

        return self.parsed(key, check)

    def holds_table(self, key: str) -> bool:
        """Whether a key not yet taken holds a table."""
        return isinstance(self._left.get(key), dict)

    def table(self, key: str) -> Table | None:
        """Take a table, to be read and finished on its own."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(
                key, f"{words(value)} is not a table", f"write [{dotted((*self.key, key))}] and its keys below it"
            )
            return None
        return Table(self.document, (*self.key, key), value)

    def tables(self, key: str) -> list[Table] | None:
        """Take a list of tables, written as [[key]] each."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.wrong(
                key, f"{words(value)} is not a list of tables", f"write [[{dotted((*self.key, key))}]] above each"
            )
            return None
        return [Table(self.document, (*self.key, key, index), each) for index, each in enumerate(value)]

    def finish(self, elsewhere: Mapping[str, str] | None = None) -> None:
        """Note every key that was not taken as unknown; `elsewhere` maps keys to where they do belong."""
        for key in self._left:
            if home := (elsewhere or {}).get(key):
                self.wrong(key, f"`{key}` stands {self.place}", home)
            else:
                self.wrong(key, f"unknown key `{key}`", suggestion(key, self._known))


def suggestion(name: str, known: Collection[str]) -> str:
    """Name the nearest known word, or all of them where they are few."""
    lower = {each.lower(): each for each in known}
    if near := difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6):
        return f"did you mean `{lower[near[0]]}`?"
    return f"known: {', '.join(known)}" if 0 < len(known) <= 30 else ""


def words(value: object) -> str:
    """Show a TOML value in an error, cut where it is long."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= 60 else f"{text[:57]}…"


def not_yet(what: str, remedy: str = "") -> InputError:
    """Refuse what is designed and not built: one line that says "not yet", never ignored."""
    return InputError(Problem("", f"{what} is not yet supported", remedy))


def refused(value: object, remedy: str) -> InputError:
    """Refuse a value, shown in short, and say what would be right."""
    return InputError(Problem("", f"{words(value)} is not allowed here", remedy))


def _as_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise refused(value, "write a text in quotes")
    return value


def _as_texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each and "\0" not in each for each in value):
        raise refused(value, 'write a list of texts, such as ["a", "b"]')
    return tuple(value)
