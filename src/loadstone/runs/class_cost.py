"""Runs a plan with all its classes, and once more without one: what that costs the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from loadstone.analyse.class_cost import class_cost
from loadstone.core import run_folder
from loadstone.core.errors import InputError
from loadstone.core.summary import Summary
from loadstone.workload.class_requests import read_classes
from loadstone.workload.load_options import LoadOptions, WorkloadOptions
from loadstone.workload.option_fields import change
from loadstone.workload.options import RunOptions
from loadstone.workload.planning import plan_of

Run = TypeVar("Run", bound=RunOptions)


def run_without(options: Run, run: Callable[[Run], Summary]) -> Summary:
    """Run what the options ask for, and the same plan without the class of --without; returns the
    first, with what changed for the others. Raises InputError: there is no such class, or no
    other."""
    workload, name = options.workload, options.workload.without
    if workload.plan is not None:
        names = [of_class.name for of_class in run_folder.read_plan(workload.plan).classes]
    elif workload.trace is not None:
        names = plan_of(change(options, without=None)).class_names
    else:
        names = [request.name for request in read_classes(workload.mix, workload.classes)]
    if name not in names or len(names) < 2:
        listed = ", ".join(names)
        why = f"of the classes {listed}" if len(names) > 1 else "of a mix of several (--mix)"
        raise InputError(f"--without {name}: name one {why}")
    whole = run(change(options, without=None))
    rest = run(
        dataclasses.replace(
            options,
            workload=WorkloadOptions(
                plan=Path(whole.run_dir), without=name, structured=workload.structured
            ),
            load=LoadOptions(grace_s=options.load.grace_s),
        )
    )
    folder = Path(whole.run_dir)
    whole.class_cost = class_cost(str(name), folder, Path(rest.run_dir))
    run_folder.write_json(folder / "summary.json", whole.document())
    run_folder.seal(folder, run_folder.read_info(folder))
    return whole
