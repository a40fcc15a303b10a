"""Models that Hugging Face's tools have downloaded to this machine: their config.json, found by the
model's id."""

import os
import re
from pathlib import Path

from loadstone.core import host

_ID = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*/)?[A-Za-z0-9][A-Za-z0-9._-]*")
_MOST_COMMIT_BYTES = 64


def cached_config(name: str) -> Path | None:
    """Return the `config.json` of a model id, as it stands in the cache: that of its main branch,
    else the newest there is.

    The cache holds models--OWNER--NAME/{refs/main, snapshots/COMMIT/config.json} (huggingface_hub,
    file_download.py). Nothing is downloaded. None where there is none, and for what is no id.
    """
    if not _ID.fullmatch(name.strip()):
        return None
    model = _folder() / f"models--{name.strip().replace('/', '--')}"
    try:
        with (model / "refs" / "main").open("rb") as file:
            commit = file.read(_MOST_COMMIT_BYTES).decode("ascii").strip()
        file_of_main = model / "snapshots" / Path(commit).name / "config.json"
        if file_of_main.is_file():
            return file_of_main
    except (OSError, ValueError):
        pass  # downloaded by commit alone
    try:
        by_time = {
            file.stat().st_mtime: file for file in (model / "snapshots").glob("*/config.json")
        }
    except OSError:
        return None
    return by_time[max(by_time)] if by_time else None


def _folder() -> Path:
    """Return where huggingface_hub looks (its constants.py)."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return host.make_path(os.path.expandvars(named))
    home = os.environ.get("HF_HOME")
    return (
        host.make_path(os.path.expandvars(home))
        if home
        else host.cache_folder().with_name("huggingface")
    ) / "hub"
