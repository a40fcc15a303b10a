"""What an importer makes of a file: cells, each a load and what the file says came of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from loadstone.analyse.verdict import Finding
from loadstone.core import Load, RequestRecord

_PLACE = re.compile(r", (line|benchmark|experiment) \d+$")


@dataclass(kw_only=True)
class Cell:
    """One load of an imported file; what the file does not tell is None or absent.

    where        for findings: `september/results.jsonl, line 3`; in the one folder that was named, from there
    tool         whose client measured it, with its version where the file tells
    load         None: not told
    url          of the server, where the file tells it
    identity     what the tool calls this one measurement, in all files that tell of it
    deployment   as RunInfo.settings["deployment"], see runfacts
    workload     as Plan.workload; {} where nothing is told
    label        what the user calls the setup
    requests     `sent`, `ok` (completed, as the tool counts), `error`, `short`, …
    latencies    metric to statistic to seconds, as stated: {"ttft_s": {"mean": 0.1, "p50": …}}
    totals       metrics.TOTALS, as stated
    under_way    mean number of requests under way, as stated
    records      the requests, where the file has them; the cell's numbers are then computed from these
    relative     each record's times count from its own send: when it was sent is not told
    unknown      metrics that the records cannot give, though they look as if
    definitions  the dialect (loadstone.analyse.other_tools) by whose formulas the numbers were made
    """

    where: str
    tool: str
    load: Load | None
    url: str | None = None
    identity: str | None = None
    endpoint: str | None = None
    created: str | None = None
    deployment: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    prefix_cache: bool | None = None
    label: str | None = None
    requests: dict[str, int | None] = field(default_factory=dict)
    duration_s: float | None = None
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    totals: dict[str, float | int | None] = field(default_factory=dict)
    under_way: float | None = None
    records: list[RequestRecord] = field(default_factory=list)
    relative: bool = False
    unknown: tuple[str, ...] = ()
    definitions: str | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def file(self) -> str:
        return _PLACE.sub("", self.where)

    @property
    def server(self) -> str:
        """What says of two cells whether one server answered: its URL, else the folder that results were put in."""
        return self.url or str(PurePath(self.file).parent)

    @property
    def completed(self) -> int | None:
        return self.requests.get("ok")

    def say(self, kind: str, severity: str, evidence: str, remedy: str) -> None:
        self.findings.append(Finding(kind, severity, evidence, remedy))  # type: ignore[arg-type]
