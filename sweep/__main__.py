"""The `sweep` command: catches every error of ours once, prints one line per problem, and exits with its code."""

from __future__ import annotations

import os
import sys

from schemas.errors import SweepError


def main() -> None:
    """Run the command line; never a traceback for what the user or the environment did wrong."""
    from sweep.cli import app

    try:
        app()
    except SweepError as error:
        for line in str(error).splitlines():
            print(f"sweep: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader of our output had enough, as in `sweep sql … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
