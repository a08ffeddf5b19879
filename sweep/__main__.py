"""The `sweep` command: catches every error of ours once, prints one line per problem, and exits with its code."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import NoReturn

if __name__ == "__main__" and sys.path[0] == str(Path.cwd()) != str(Path(__file__).parents[1]):
    del sys.path[0]  # `python -m sweep`: a user's own tasks.py is not ours

from schemas.errors import SiteError, SweepError


def main() -> None:
    """Run the command line; never a traceback for what the user or the environment did wrong."""
    from sweep.cli import app

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever a benchmark printed, on any terminal
    ours = sys.stdout
    try:
        app()
        sys.stdout.flush()
    except SweepError as error:
        for line in str(error).splitlines():
            print(f"sweep: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output had enough, as in `sweep sql … | head`
        _end(0)
    except SystemExit:
        if sys.stdout is not ours:  # typer found the same, and wrapped what it calls a failure
            _end(0)
        raise
    except KeyboardInterrupt:
        _end(130)
    except OSError as error:  # a full disk behind a redirection, a limit reached: named by the system itself
        print(f"sweep: {error.filename or 'stdout'}: {error.strerror or error}", file=sys.stderr)
        _end(SiteError.exit_code)
    finally:
        _let_go_of_stderr()


def _let_go_of_stderr() -> None:
    """Have what stderr could not take forgotten: Python would try again at the end, and end with 120."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _end(code: int) -> NoReturn:
    """Exit without writing what stdout still holds: it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
