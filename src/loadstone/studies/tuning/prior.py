"""Computes what the model expects of settings before any launch, by simulating each once.

The logarithms of their values are expected where the simulations have them, relative to the
default's. How wrong that may be is common to settings as far as they depend alike on the profile's
coefficients: the covariance is (J − J₀)·C·(J − J₀)ᵀ, with the slopes J of a setting and J₀ of the
default. What the model does not know of a flag, the race's own spread has to cover.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np

from loadstone.core.errors import InputError
from loadstone.core.vectors import Floats
from loadstone.predict.simulator.cell import run_cell
from loadstone.predict.simulator.fleet import Fleet, fleet_of
from loadstone.predict.simulator.parts import beginning
from loadstone.predict.simulator.uncertainty import fleet_slopes, median_figures, observe_batch
from loadstone.predict.step_time import StepModel
from loadstone.studies.plan import PlannedLaunch
from loadstone.studies.tuning.belief import Prior
from loadstone.workload.option_fields import options_of
from loadstone.workload.options import Options
from loadstone.workload.planning import Planner

_RATE = "output_tokens_per_s"
_LARGEST = 1.0
"""No setting is expected to be better or worse by more, a logarithm: the race shall find it out."""


def expect(launches: Sequence[PlannedLaunch], objective: str) -> Prior:
    """Return the prior of settings, the default's launch first; a flat one where the model does not
    know the deployment, or the objective."""
    flat = Prior.flat(len(launches))
    if objective in ("rate", "energy") or launches[0].parsed is None:
        return flat
    metric = _RATE if objective == "throughput" else f"{objective.partition(':')[2]}_s"
    values, slopes = [], []
    covariance: Floats | None = None
    for launch in launches:
        try:
            fleet, figure, slope = _simulate(launch, metric)
        except InputError:
            return flat
        model = cast(StepModel, fleet.model)
        covariance = np.array(model.profile.covariance)
        values.append(np.log(figure))
        slopes.append(slope)
    if covariance is None or not np.isfinite(values).all():
        return flat
    sign = 1.0 if metric == _RATE else -1.0
    relative = sign * (np.array(values) - values[0])
    moved = np.array(slopes) - slopes[0]
    return Prior(np.clip(relative, -_LARGEST, _LARGEST), moved @ covariance @ moved.T)


def _simulate(launch: PlannedLaunch, metric: str) -> tuple[Fleet, float, Floats]:
    """Return a launch's fleet, what a simulation of its load gives, and its slopes by coefficient.
    Raises InputError where it cannot be simulated."""
    if launch.parsed is None:
        raise InputError("no layout, so that there is nothing to simulate")
    (cell,) = launch.cells
    named = {key.replace("-", "_"): value for key, value in cell.options.items()}
    plan = Planner(options_of(named, Options)).plan()
    fleet = fleet_of(launch.parsed)
    if not isinstance(fleet.model, StepModel):
        raise InputError("no model of its steps")
    run = run_cell(beginning(plan, 0), 0, fleet, grace_s=0.0)
    figures = median_figures(run)
    if metric not in figures:
        raise InputError("the simulation answers nothing")
    ttft, tpot = fleet_slopes(fleet, *observe_batch(run, fleet))
    slope = ttft if metric.startswith("ttft") else -tpot if metric == _RATE else tpot
    return fleet, figures[metric], np.asarray(slope)
