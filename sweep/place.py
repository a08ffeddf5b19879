"""Where the archive is: what the user says, else what the site says, else ./sweep-archive."""

from __future__ import annotations

import os
from pathlib import Path

from schemas.spec import Site
from sweep.site import load_site


def archive_folder(option: Path | None, site: Site | None = None) -> Path:
    """The archive's folder; the site is looked up where it is not at hand."""
    if option is not None:
        return option
    known = site if site is not None else load_site(None, os.environ)
    return Path(known.archive if known.archive is not None else "sweep-archive")
