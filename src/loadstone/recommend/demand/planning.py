"""Holds the demand of a plan: the options, the traffic, the prices, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from loadstone.analyse.compare.price import Prices, key, parse_prices
from loadstone.catalogue import parse_deployment, parse_worker
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.electricity import Electricity
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.predict.simulator.fleet import pair_tokens
from loadstone.predict.step_time import StepModel
from loadstone.recommend.demand.effort import FULL, Effort
from loadstone.recommend.demand.options import ChoiceOptions, RecommendOptions, SearchOptions
from loadstone.recommend.demand.traffic import Traffic, read_bounds, traffic_of
from loadstone.workload.class_requests import ClassRequest
from loadstone.workload.option_fields import check_limits


def _ignore(line: str) -> None:
    """Show progress to nobody."""


@dataclass(frozen=True)
class Planning:
    """Holds what is asked. `show`: is given lines that say what is being done.

    classes      of a mix that one fleet serves; of one class the options say all
    is_mixed     fleets for several classes are judged together
    by_priority  engines serve them by their priority
    models       of step times, those made so far: by what they are of
    """

    options: RecommendOptions
    traffic: Traffic
    prices: Prices
    show: Callable[[str], None]
    effort: Effort
    classes: tuple[ClassRequest, ...] = ()
    is_mixed: bool = False
    by_priority: bool = False
    models: dict[tuple[object, ...], StepModel] = field(default_factory=dict, compare=False)

    @property
    def search(self) -> SearchOptions:
        return self.options.search

    @property
    def choice(self) -> ChoiceOptions:
        return self.options.choice

    @property
    def electricity(self) -> Electricity:
        return self.choice.electricity or Electricity()

    @property
    def by_throughput(self) -> bool:
        return self.choice.objective == "throughput"

    @property
    def acceptance_known(self) -> bool:
        return self.search.acceptance is not None

    def price_gpu(self, worker: Worker) -> float:
        """Return dollars per hour of one GPU; 1 where no prices are given."""
        return self.prices.get(key(worker.gpu.name), math.nan) if self.prices else 1.0

    def redraw(self) -> Planning:
        """Return the same with other requests, those of --seed."""
        traffic = _draw_traffic(self.options, self.options.seed, self.classes)
        return replace(self, traffic=replace(traffic, by_priority=self.by_priority))


def plan_for(
    options: RecommendOptions,
    show: Callable[[str], None] = _ignore,
    effort: Effort = FULL,
    classes: tuple[ClassRequest, ...] = (),
) -> Planning:
    """Draw the traffic, of a mix that of all its `classes`, and read the prices. Raises InputError:
    a number beyond its limits, names that mean nothing, GPUs without a price, no load or two, no
    bound that can be held."""
    check_limits(options)
    read_bounds(options, classes)
    if not options.search.gpus:
        raise InputError("--gpus: name the kinds of GPU to choose among, e.g. --gpus h200,b200")
    first = parse_deployment(f"{options.model}@1x{options.search.gpus[0]}/tp1")
    task = first.asked_for(options.endpoint).worker.argument("task")
    if task is not None:  # of a model that writes text, too
        arguments = (*options.search.arguments, f"task={task}")
        options = replace(options, search=replace(options.search, arguments=arguments))
    traffic = _draw_traffic(options, 0, classes)
    prices = parse_prices(options.choice.price) if options.choice.price else Prices()
    gpus = gpu_names(options) if prices else []
    for name, gpu in zip(options.search.gpus, gpus, strict=False):
        if key(gpu) not in prices:
            raise InputError(
                f"--price: none is given for {name}; add {name}=DOLLARS, or leave it out of --gpus"
            )
    return Planning(options, traffic, prices, show, effort, classes)


def gpu_names(options: RecommendOptions) -> list[str]:
    """Return the catalogue's name of each GPU of --gpus. Raises InputError."""
    return [parse_worker(f"{options.model}@1x{name}/tp1").gpu.name for name in options.search.gpus]


def named_workers(options: RecommendOptions) -> Iterator[Worker]:
    """List the model on one GPU of each kind under each engine, with --argument. Raises InputError:
    unknown names."""
    arguments = ",".join(options.search.arguments)
    for gpu, engine in product(options.search.gpus, options.search.engine):
        text = f"{options.model}@1x{gpu}/tp1,engine={engine}"
        first = parse_worker(text)
        try:
            yield parse_worker(f"{text},{arguments}") if arguments else first
        except InputError:
            # Of several engines, those have an argument that know it.
            if len(options.search.engine) == 1:
                raise


def _draw_traffic(
    options: RecommendOptions, seed: int, classes: tuple[ClassRequest, ...]
) -> Traffic:
    """Draw the traffic; sessions of a file end where the model's context does, if that is known."""
    has_limit = options.workload.agents is not None or options.endpoint is not None
    worker = next(named_workers(options), None) if has_limit else None
    if worker is None:
        return traffic_of(options, seed, None, classes)
    return traffic_of(options, seed, rules_of(worker).context_limit, classes, pair_tokens(worker))
