"""What `run.json` says of a measured run before it begins: what was asked, of whom, by whom, without secrets."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from loadstone.analyse.client_accuracy import Selftest
from loadstone.core import CellInfo, Plan, RunInfo, Target, host, run_folder
from loadstone.core.version import __version__
from loadstone.runs.meet_server import sampling_of
from loadstone.runs.worker_jobs import route
from loadstone.workload.options import Options

_SECRET_FLAGS = ("--header", "-H", "--extra-body")


def run_info(
    options: Options, plan: Plan, target: Target, slo: dict[str, float], salt: str | None, selftest: Selftest | None
) -> RunInfo:
    now = datetime.now(UTC)
    return RunInfo(
        run_id=run_folder.run_id(now, target.engine, target.model.rsplit("/", 1)[-1]),
        source="measured",
        created=now.isoformat(timespec="seconds"),
        command=_without_secrets(options.command),
        loadstone=__version__,
        host=host.describe(),
        target=target,
        plan_id=plan.plan_id,
        seed=plan.seed,
        salt=salt,
        slo=slo,
        settings={
            "label": options.label,
            "workload": plan.workload,
            "sampling": msgspec.to_builtins(sampling_of(options)),
            "structured": options.structured,
            "dialect": options.dialect,
            "route": route(options, plan),
            "extra_body_fields": sorted(options.extra_body),
            "headers": sorted(name for name, _ in options.headers),
            "timeouts": msgspec.to_builtins(options.timeouts),
            "grace_s": options.grace_s,
        },
        cells=[CellInfo(load=load) for load in plan.cells],
        selftest=msgspec.to_builtins(selftest),
    )


def _without_secrets(command: Sequence[str]) -> list[str]:
    shown = list(command)
    for i, part in enumerate(shown):
        for flag in _SECRET_FLAGS:
            if part == flag and i + 1 < len(shown):
                shown[i + 1] = "…"
            elif part.startswith(flag + "="):
                shown[i] = f"{flag}=…"
            elif part.startswith(flag) and not flag.startswith("--"):
                shown[i] = f"{flag}…"
    return shown
