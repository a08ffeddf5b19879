"""What Ray's own words mean, in one line that ends with what to do. Imports no Ray: it is read from outside, too."""

from __future__ import annotations

import re
from collections.abc import Mapping

BAD_TOKEN = "InvalidAuthToken"  # noqa: S105 - the name of an error
"""What Ray's client writes to stderr every second for as long as a cluster refuses its token."""
DEAF = re.compile(r"Failed to connect to (?:GCS|the \w+ pubsub)")
"""What it writes every few seconds while something listens at the address and does not answer as Ray's head does."""

_VERSIONS = re.compile(
    r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)\s+"
    r"This process on .*? was started with:\s+Ray: (\S+)\s+Python: (\S+)"
)
_NO_TOKEN = re.compile(r"no authentication token was found|RAY_AUTH_TOKEN_PATH is set but|token (?:is|was) empty")
_COPY = "the cluster's own is in ~/.ray/auth_token on its head: copy it, or name it by RAY_AUTH_TOKEN_PATH"


def explain(text: str, environ: Mapping[str, str]) -> str | None:
    """Say what keeps us out of a cluster, from Ray's exception or log; None where we know no more than Ray."""
    if versions := _VERSIONS.search(text):
        return _other_versions(*versions.groups())
    if BAD_TOKEN in text:
        if environ.get("RAY_AUTH_MODE") == "token":
            return f"the token given here is not the cluster's; {_COPY}"
        return f"the cluster wants a token and none was given; set RAY_AUTH_MODE=token; {_COPY}"
    if _NO_TOKEN.search(text):
        return f"RAY_AUTH_MODE=token, and no token is found; {_COPY}; `ray get-auth-token --generate` makes one"
    return None


def _other_versions(ray: str, python: str, our_ray: str, our_python: str) -> str:
    """Ray wants both to be equal, Python's to the patch level."""
    has, needs = [], []
    if ray != our_ray:
        has.append(f"Ray {ray} and here is Ray {our_ray}")
        needs.append(f"pip install ray=={ray}")
    if python != our_python:
        has.append(f"Python {python} and here is Python {our_python}")
        needs.append(f"run sweep from an environment of Python {python}")
    return f"there is {', '.join(has)}, and Ray wants them equal; {', '.join(reversed(needs))}"
