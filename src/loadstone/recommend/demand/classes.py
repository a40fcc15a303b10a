"""The classes of a mix, and the sets of them that a fleet of its own may serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from loadstone.catalogue import parse_worker
from loadstone.core.errors import InputError
from loadstone.core.groups import by_key
from loadstone.recommend.demand.options import RecommendOptions, SearchOptions
from loadstone.workload.class_requests import ClassRequest, read_classes, show_bounds
from loadstone.workload.load_options import WorkloadOptions
from loadstone.workload.mix import rate_shares
from loadstone.workload.option_fields import changed_options, options_of

MAX_DIVIDED = 4
"""Classes whose every division into fleets is looked at: 15 of four, 52 of five."""

ClassSet = tuple[int, ...]
"""Places of classes that one fleet serves."""
Partition = tuple[ClassSet, ...]
"""Sets that every class is in once."""


@dataclasses.dataclass(frozen=True)
class Classes:
    """The classes of a mix, in their order.

    rates   of each, requests/s, or sessions/s where it has turns; 0 of one with slots
    models  of each; `adapters`: names that are no model of the catalogue, by class
    """

    options: RecommendOptions
    requests: tuple[ClassRequest, ...]
    rates: tuple[float, ...]
    models: tuple[str, ...]
    adapters: dict[str, str]

    def names(self, chosen: ClassSet) -> list[str]:
        return [self.requests[number].name for number in chosen]

    def ask(self, chosen: ClassSet) -> tuple[RecommendOptions, tuple[ClassRequest, ...]]:
        """Return the options that plan one fleet for a set of classes, and these: none of one
        class, which the options say as they would without a mix."""
        whole, requests = self.options, [self.requests[number] for number in chosen]
        load, rate = whole.load, sum(self.rates[number] for number in chosen)
        several = self.has_adapters(chosen)
        of_one = requests[0] if len(chosen) == 1 and not several else None
        given = {} if of_one is None else of_one.workload
        slots = of_one.traffic.slots if of_one else 0
        options = dataclasses.replace(
            whole,
            model=self.models[chosen[0]],
            search=self._search(chosen),
            workload=options_of({**given, "seed": whole.seed}, WorkloadOptions),
            load=dataclasses.replace(
                load,
                rate=rate or None,
                concurrency=slots or None,
                slo=None if of_one is None else show_bounds(of_one),
            ),
        )
        if of_one is not None:
            return options, ()
        shared = []
        for number, request in zip(chosen, requests, strict=True):
            traffic = request.traffic
            if not several:  # one that all ask for is merged into the weights
                traffic = replace(traffic, adapter=None)
            shared.append(replace(request, traffic=traffic, share=self.rates[number], rate=None))
        return options, tuple(shared)

    def has_adapters(self, chosen: ClassSet) -> bool:
        """Tell whether requests of a set do not all ask for the same weights."""
        kinds = [self.requests[number].traffic for number in chosen]
        return len({name for kind in kinds for name in kind.adapter_names or ("",)}) > 1

    def _search(self, chosen: ClassSet) -> SearchOptions:
        """Return what is looked at for a set of classes: with room for adapters, where its requests
        do not all ask for the same one, which is then merged into the weights."""
        search = self.options.search
        if not self.has_adapters(chosen) or any("lora" in given for given in search.arguments):
            return search
        rank = max(self.requests[number].traffic.adapter_rank or 16 for number in chosen)
        return dataclasses.replace(search, arguments=(*search.arguments, f"max_lora_rank={rank}"))

    def has_priorities(self, chosen: ClassSet) -> bool:
        """Tell whether the classes of a set are to be served in an order."""
        return len(set(map(self._priority, chosen))) > 1

    def list_partitions(self) -> list[Partition]:
        """List how fleets may divide the classes, the fewest fleets first: in every way; of more
        classes than MAX_DIVIDED all together, by priority, and each by itself. A fleet has one
        model, and those with slots have a fleet each."""
        everything = range(len(self.requests))
        if len(everything) <= MAX_DIVIDED:
            listed = [tuple(sorted(sets)) for sets in _divide(tuple(everything))]
        else:
            keys = [(self._kind(number), self._priority(number)) for number in everything]
            by_kind = by_key((kind, number) for number, (kind, _) in enumerate(keys))
            by_priority = by_key((key, number) for number, key in enumerate(keys))
            groups = (by_kind, by_priority, {number: [number] for number in everything})
            listed = [tuple(sorted(map(tuple, sets.values()))) for sets in groups]
        allowed = [
            sets
            for sets in dict.fromkeys(listed)
            if all(len({self._kind(number) for number in chosen}) == 1 for chosen in sets)
        ]
        return sorted(allowed, key=lambda sets: (len(sets), sets))

    def _priority(self, number: int) -> int:
        return self.requests[number].traffic.priority or 0

    def _kind(self, number: int) -> tuple[str, int]:
        """Name what classes of a fleet have in common: a class with slots, by its place, shares
        none."""
        return self.models[number], number + 1 if self.requests[number].traffic.slots else 0


def _divide(places: ClassSet) -> Iterator[Partition]:
    """List every division of some places into sets."""
    if not places:
        yield ()
        return
    first, rest = places[0], places[1:]
    for sets in _divide(rest):
        yield ((first,), *sets)
        for number, chosen in enumerate(sets):
            yield (*sets[:number], (first, *chosen), *sets[number + 1 :])


_OWN = ("mix", "class", "seed")


def classes_of(options: RecommendOptions) -> Classes:
    """Read the classes of --mix and --class, with how much each asks for. Raises InputError: a
    class without bounds, options that a mix does not go with."""
    workload, load = options.workload, options.load
    requests = tuple(read_classes(workload.mix, workload.classes))
    for flag in changed_options(workload):
        if flag not in _OWN:
            raise InputError(f"--mix and --{flag}: each class says this of itself; give it there")
    for flag, given in (
        ("slo", load.slo),
        ("concurrency", load.concurrency),
        ("study", options.study),
        ("endpoint", options.endpoint),
        ("pools", options.search.pools),
    ):
        if given:
            remedy = "give each class its slo" if flag == "slo" else "leave one out"
            remedy = "give the class slots" if flag == "concurrency" else remedy
            raise InputError(f"--mix and --{flag}: do not go together; {remedy}")
    if options.choice.objective != "cost":
        raise InputError("--mix and --objective throughput: do not go together; leave one out")
    unbounded = next((request.name for request in requests if not request.traffic.slo), None)
    if unbounded is not None:
        raise InputError(f"class {unbounded}: has no bound to plan for; give it slo")
    closed = (request for request in requests if request.traffic.slots)
    several = next(
        (request.name for request in closed if len(request.traffic.adapter_names) > 1), None
    )
    if several is not None:
        raise InputError(f"class {several}: slots with several adapters are not planned; give rate")
    untimed = next((request.name for request in requests if request.replays), None)
    if untimed is not None:
        raise InputError(
            f"class {untimed}: needs one of share, rate (requests/s) and slots; a trace's own times"
            " are not planned"
        )
    rates = _read_rates(requests, load.rate)
    models, adapters = [], {}
    for request in requests:
        name = request.traffic.model
        models.append(name or options.model)
        if name is not None and not _is_model(name, options):
            models[-1], adapters[request.name] = options.model, name
    return Classes(options, requests, rates, tuple(models), adapters)


def _read_rates(requests: Sequence[ClassRequest], rate: float | None) -> tuple[float, ...]:
    """Return the requests/s of each class, 0 of one with slots. Raises InputError."""
    of_rates = [request for request in requests if not request.traffic.slots]
    shared = any(request.share for request in of_rates)
    if rate is None and shared:
        raise InputError("--mix: classes with a share need the --rate that they share")
    if rate is not None and not of_rates:
        raise InputError("--rate: all classes have slots, and none comes at a rate; leave it out")
    total = rate or sum(request.rate or 0.0 for request in of_rates)
    shares = iter(rate_shares(of_rates, total) if of_rates else ())
    return tuple(0.0 if request.traffic.slots else total * next(shares) for request in requests)


def _is_model(name: str, options: RecommendOptions) -> bool:
    try:
        parse_worker(f"{name}@1x{options.search.gpus[0]}/tp1")
    except (InputError, IndexError):
        return False
    return True
