"""Whether this machine can hold a lab, found out by making its namespaces and nothing in them."""

from __future__ import annotations

import os
from typing import NoReturn

from schemas.errors import SiteError
from sweep.lab_namespaces import MS_REC, MS_SLAVE, mount
from sweep.lab_supervisor import leave_the_machine
from sweep.lab_trouble import explain, refuse_other_systems


def refusal() -> str | None:
    """Why no lab can be had here, in one line that ends with what to do; None if one can."""
    try:
        refuse_other_systems()
    except SiteError as error:
        return str(error)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _try(writer)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    if not said:
        return None
    step, number, text = said.split(" ", 2)
    return explain(step, int(number), text)


def _try(writer: int) -> NoReturn:
    """In a child that ends at once: the first steps of a lab's supervisor."""
    step = "namespaces"
    try:
        leave_the_machine()
        step = "mounts"
        mount("none", "/", "", MS_REC | MS_SLAVE)
    except OSError as error:
        os.write(writer, f"{step} {error.errno or 0} {error.strerror}".encode())
    finally:
        os._exit(0)
