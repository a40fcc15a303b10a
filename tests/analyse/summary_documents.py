"""Summaries of run folders as the documents that `--json` prints."""

from pathlib import Path
from typing import Any

from loadstone.analyse.summary import summary_of
from loadstone.core.summary import Summary


def summarise(folder: Path) -> dict[str, Any]:
    return summary_of(folder).document()


def trusted(document: dict[str, Any]) -> bool:
    return Summary.of(document).trusted
