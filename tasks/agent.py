"""The remote-shell agent: what an MPI launcher runs instead of ssh, on the node that leads an attempt.

A script of the standard library alone, laid into the attempt's folder. It is called as ssh would be, `AGENT [options]
HOST COMMAND…`, hands host and command to the node part of this node over a Unix socket, and waits for the command's
end. What is for this node itself runs here at once. No keys, no passwords, no daemon: whoever started the attempt
reaches the other nodes already.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TAKE_A_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")  # ssh's options that are followed by a value of their own
REFUSED = 255  # what ssh itself ends with when it cannot connect


def parse(words: list[str]) -> tuple[str, str]:
    """Host and command of a call in ssh's form; the command is one text for a shell, as ssh sends it."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        takes_next = len(words[at]) == 2 and words[at][1] in TAKE_A_VALUE
        at += 2 if takes_next else 1
    if at >= len(words):
        raise ValueError("called without a host")
    return words[at].rpartition("@")[2], " ".join(words[at + 1 :])


def main() -> int:
    """Hand the command over, wait, and end as it ended."""
    try:
        host, command = parse(sys.argv[1:])
        if host in os.environ.get("SWEEP_SELF", "").split(","):
            os.execv("/bin/sh", ["sh", "-c", command])  # noqa: S606 - a launcher's command is meant for a shell
        request = {"op": "spawn", "attempt": os.environ["SWEEP_ATTEMPT"], "host": host, "command": command}
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(os.environ["SWEEP_AGENT"])
            caller.sendall(json.dumps(request).encode() + b"\n")
            answer = caller.makefile("rb").readline()
        reply = json.loads(answer) if answer else {"error": "the node part went away"}
    except (OSError, KeyError, ValueError) as error:
        reply = {"error": str(error)}
    if "error" in reply:
        sys.stderr.write(f"sweep agent: {reply['error']}\n")
        return REFUSED
    return int(reply["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
