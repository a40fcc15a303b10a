"""Describes what was served and what was asked of it, as reports name them: Setup and Demand."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadstone.analyse.run_facts import RunFacts, mapping, number
from loadstone.analyse.stored_run import StoredRun
from loadstone.core.plan import Load
from loadstone.core.record import MESSAGE_APIS
from loadstone.core.units import show_seconds, show_share
from loadstone.report.data.statistic import round_count
from loadstone.report.data.wording import clean, join

_SHARED = "shared-prefix"
"""Part of the name of SGLang's data set of that sort."""


class Setup(msgspec.Struct, kw_only=True, frozen=True):
    """Holds the facts of the deployment as in RunFacts, in words; "" where nobody told.

    parallel      how one server is split, and how many of them there were, if several
    context       the longest that the engine was set up for
    label         the user's name for it; it is in `settings` where nothing else tells setups apart
                  (_add_labels)
    architecture  the catalogue's name for the model, where the user declared it and the server has
                  another
    study         a study's name for it
    """

    source: str
    model: str
    engine: str
    version: str
    gpu: str
    gpus: int | None
    parallel: str
    precision: str
    context: str
    settings: str
    label: str
    architecture: str
    study: str = ""

    @property
    def hardware(self) -> str:
        return f"{self.gpus}×{self.gpu}" if self.gpu and self.gpus else self.gpu


class Demand(msgspec.Struct, kw_only=True, frozen=True):
    """Holds the requested workload, without its load.

    near_*  lengths by which cells are grouped: those within LENGTHS of one another are the same
            (_unify_lengths)
    prefix  the tokens that prompts share, and whether a cache was off; work: other wishes, without
            lengths
    how     a part of the load that its value does not tell: a ramp, sessions; it is in `work` too
    slo     the bounds
    """

    offline: bool
    input_tokens: int | None
    output_tokens: int | None
    near_input: int | None = None
    near_output: int | None = None
    prefix: str
    work: str
    how: str
    slo: str


def describe_setup(run: StoredRun) -> Setup:
    facts, target = run.facts, run.info.target
    servers = len(target.urls) if target else 0
    fleet = f"fleet of {servers}" if servers > 1 else ""
    settings = (facts.settings or "").removeprefix(facts.named or "").removeprefix(", ")
    return Setup(
        source=run.info.source,
        model=_last_part(facts.model),
        engine=clean(facts.engine or "unknown engine"),
        version=clean(facts.engine_version or ""),
        gpu=clean(facts.gpu or ""),
        gpus=facts.gpus,
        parallel=clean(join(_parallel(facts), fleet, by=" ")),
        precision=clean(_precision(facts)),
        context=_context(run),
        settings=clean(settings),
        label=clean(facts.named or ""),
        architecture=_last_part(facts.architecture),
    )


def _last_part(model: str | None) -> str:
    """Return a model's name without the folder, or the organisation, that it is in."""
    return clean((model or "").rstrip("/").rsplit("/", 1)[-1])


def _parallel(facts: RunFacts) -> str:
    if facts.layout:
        return facts.layout
    split = (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp), ("ep", facts.ep))
    return " ".join(f"{name}{n}" for name, n in split if n and (n > 1 or name == "tp"))


def _precision(facts: RunFacts) -> str:
    differs = facts.kv_dtype and facts.kv_dtype != facts.weights_dtype
    return join(facts.weights_dtype, f"KV {facts.kv_dtype}" if differs else "")


def _context(run: StoredRun) -> str:
    target = run.info.target
    stated = round_count(number(run.info.settings.deployed.max_model_tokens))
    tokens = stated or (target.max_model_tokens if target else None)
    return f"max {tokens:,} tokens" if tokens else ""


def describe_demand(run: StoredRun, load: Load) -> Demand:
    facts = run.facts
    how = _describe_load(run, load)
    bounds = run.info.slo.items()
    return Demand(
        offline=facts.mode == "offline",
        input_tokens=round_count(facts.input_tokens),
        output_tokens=round_count(facts.output_tokens),
        prefix=_prefix(facts),
        work=clean(join(*_work(run), how, _chat(run))),
        how=how,
        slo=", ".join(f"{clean(name)} < {show_seconds(limit_s)}" for name, limit_s in bounds),
    )


def _describe_load(run: StoredRun, load: Load) -> str:
    """Show sessions and ramps: `sessions of 4 turns`, `ramp 5–40 req/s in 60 s`."""
    sessions = mapping(run.info.settings.workload.get("sessions"))
    turns = number(mapping(sessions.get("turns")).get("mean"))
    talks = ""
    if sessions or load.unit == "sessions":  # imported loads may count requests of conversations
        talks = f"sessions of {turns:.3g} turns" if turns else "sessions"
    return join(talks, f"ramp {load.label}" if load.profile else "")


def _chat(run: StoredRun) -> str:
    """Name an endpoint whose template lengthens every prompt."""
    endpoint = "" if run.info.target is None else run.info.target.endpoint
    return next((name for name in MESSAGE_APIS if name in endpoint), "")


def _prefix(facts: RunFacts) -> str:
    """Show the prefix that prompts share, and if the engine's cache was off, where that is
    known."""
    shared = f"{facts.prefix_tokens:,} tokens shared" if facts.prefix_tokens else ""
    if not shared and _SHARED in (facts.workload or ""):
        shared = "a prefix shared"  # how much of it is not told
    return join(shared, "cache off" if facts.prefix_cache is False and shared else "")


def _pictures(pictures: Mapping[str, Any]) -> str:
    """Write which pictures prompts have: `0 to 2 pictures of 512x512, 1920x1080`; empty: none."""
    count, sizes = _drawn(pictures.get("count")), pictures.get("sizes")
    if not count or not isinstance(sizes, list):
        return ""
    shown = [f"{side[0]}x{side[1]}" for side in sizes if isinstance(side, list) and len(side) == 2]
    between = " to " if pictures.get("uniform") else ", "
    return f"{count} picture{'s' if count != '1' else ''} of {between.join(shown[:4])}"


def _drawn(length: Any) -> str:
    """Write what is drawn for each request: `2`, `0 to 2`, `about 2`; empty: none."""
    drawn = mapping(length)
    mean, kind = number(drawn.get("mean")), drawn.get("kind", "fixed")
    if not mean:
        return ""
    if kind == "uniform":
        return f"{drawn.get('low')} to {drawn.get('high')}"
    return f"{mean:g}" if kind == "fixed" else f"about {mean:g}"


def _work(run: StoredRun) -> Iterator[str]:
    """Yield how lengths are spread, and the name of the data, where they are told."""
    facts, workload = run.facts, run.info.settings.workload
    if facts.range_ratio is not None and facts.range_ratio < 1:
        yield f"lengths down to {show_share(facts.range_ratio)} of the longest"
    yield _pictures(mapping(workload.get("pictures")))
    kind = facts.workload or ""
    if kind == "pooled":
        count, document = (_drawn(workload.get(name)) for name in ("count", "document"))
        texts = f"documents of {document}" if document else "input" if count == "1" else "inputs"
        yield f"{workload.get('task')}, {count or 0} {texts} in a request"
        return
    name = str(workload.get("name") or workload.get("file") or "")
    if name and _SHARED not in name:  # else the prefix tells it
        yield name
        return
    data = "" if kind in ("synthetic", "random", workload.get("name")) else kind
    sha256 = workload.get("sha256")
    yield f"{data} {str(sha256)[:8]}" if sha256 else data
