"""Why a machine cannot hold a lab, in one line that ends with what to do."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from schemas.errors import SiteError

APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"
CLONE = "kernel.unprivileged_userns_clone"
MOST = "user.max_user_namespaces"

_MODULES: Mapping[tuple[str, int], tuple[str, str]] = {
    ("bridges", errno.EOPNOTSUPP): ("network bridges", "bridge"),
    ("host", errno.EOPNOTSUPP): ("veth pairs", "veth"),
    ("host", errno.ENOENT): ("token-bucket rates", "sch_tbf"),
    ("wires", errno.ENOENT): ("token-bucket rates", "sch_tbf"),
}
"""What the kernel's refusal of a netlink request means, and the module that provides it."""


def refuse_other_systems() -> None:
    """Raise SiteError where a lab cannot even be tried."""
    if sys.platform != "linux":
        raise SiteError(
            "a lab is made of Linux namespaces, and this is not Linux; use a Linux machine or a virtual one"
        )
    if find_spec("pyroute2") is None:
        raise SiteError("a lab needs the package pyroute2; install it with `pip install pyroute2`")


def explain(step: str, number: int | None, text: str, settings: Mapping[str, str] | None = None) -> str:
    """Say in one line why a step of building a lab failed and what to do.

    `number` is the errno, `settings` the kernel's (by sysctl name; read from /proc/sys by default).
    """
    known = settings if settings is not None else _settings()
    if number in {errno.EPERM, errno.EACCES}:
        return _forbidden(step, known)
    if number in {errno.ENOSPC, errno.EUSERS}:
        most = known.get(MOST, "unknown")
        return f"the kernel gives no more namespaces ({MOST} = {most}); as root: sysctl {MOST}=10000"
    if step == "namespaces" and number in {errno.EINVAL, errno.ENOSYS}:
        return "the kernel was built without some kind of namespace; run `sweep lab` as root, or use another kernel"
    if number is not None and (step, number) in _MODULES:
        what, module = _MODULES[step, number]
        return f"the kernel has no {what}; as root: modprobe {module}, or use a kernel that has it"
    return f"the lab could not be built ({step}: {text})"


def _forbidden(step: str, settings: Mapping[str, str]) -> str:
    if settings.get(APPARMOR) == "1":
        return f"AppArmor forbids user namespaces here; as root: sysctl {APPARMOR}=0, or run `sweep lab` as root"
    if settings.get(CLONE) == "0":
        return f"the kernel forbids user namespaces; as root: sysctl {CLONE}=1, or run `sweep lab` as root"
    if step == "mounts":
        return (
            "nothing may be mounted here, as in a container that hides parts of /proc; run `sweep lab` outside, or "
            "start the container with --security-opt systempaths=unconfined"
        )
    return (
        f"this machine or its container forbids namespaces ({step}); run `sweep lab` as root, or start the container "
        "with --cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt seccomp=unconfined"
    )


def _settings() -> dict[str, str]:
    files = {name: Path("/proc/sys", *name.split(".")) for name in (APPARMOR, CLONE, MOST)}
    return {name: file.read_text().strip() for name, file in files.items() if file.exists()}
