"""The nouns: what is asked (`plan`), what happened and under which circumstances (`run`). Facts only; every
interpretation lives in metrics.py and verdict/. Times are seconds. A missing value is None, never 0.
"""

from loadstone.core.plan import PHASES, Blocks, Load, LoadKind, Phase, Plan, PlannedRequest, Process, Unit
from loadstone.core.record import CellInfo, Clock, JournalDamage, RequestRecord, RunInfo, Status, Target, TokenSource

__all__ = [
    "PHASES", "Blocks", "CellInfo", "Clock", "JournalDamage", "Load", "LoadKind", "Phase", "Plan", "PlannedRequest",
    "Process", "RequestRecord", "RunInfo", "Status", "Target", "TokenSource", "Unit",
]  # fmt: skip
