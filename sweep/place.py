"""Where things are: the site file, and the archive. Imports little, for every command asks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import InputError, Problem

if TYPE_CHECKING:
    from schemas.spec import Site


def home(environ: Mapping[str, str]) -> Path:
    """Name the user's home folder."""
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def site_file(site: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Find the site file: the one named, SWEEP_SITE, ./site.toml, ~/.config/fabric-sweep/site.toml, or none."""
    if site is not None:
        return site
    if named := environ.get("SWEEP_SITE"):
        if not Path(named).exists():
            raise InputError(Problem(named, "no such site file", "SWEEP_SITE names it: correct or unset it"))
        return Path(named)
    usual = (Path("site.toml"), home(environ) / ".config" / "fabric-sweep" / "site.toml")
    return next((path for path in usual if path.exists()), None)


def archive_folder(option: Path | None, site: Site | None = None) -> Path:
    """The archive's folder: what the user says, else what the site says, else ./sweep-archive."""
    if option is not None:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(option)):  # a Path makes one slash of two
            what = f"{option} is not on this machine: a remote archive is not yet supported"
            raise InputError(Problem("--archive", what, "name a local folder"))
        return option
    if site is None and site_file(None, os.environ) is not None:
        from sweep.site import load_site  # reading TOML costs 20 ms; only who has a site pays

        site = load_site(None, os.environ)
    return Path(site.archive if site is not None and site.archive is not None else "sweep-archive")
