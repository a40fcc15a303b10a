"""A recommendation as a person reads it: the answer first."""

from __future__ import annotations

from loadstone.core.groups import by_key
from loadstone.core.units import show_number, show_seconds, show_share
from loadstone.recommend.result import ByHour, DeploymentPlan, Recommendation
from loadstone.report.table import Shown, Table

_REJECTED = 8
"""Kinds of deployments that are not advised and are shown."""


def render(document: Recommendation) -> list[Shown]:
    """Show the answer, the plans, why others are not advised, and what to measure next."""
    parts: list[Shown] = [answer(document), ""]
    parts += [
        f"{number}: {plan.replicas} × {plan.deployment}"
        for number, plan in enumerate(document.plans, 1)
    ]
    table = plan_table(document, [str(number) for number in range(1, len(document.plans) + 1)])
    parts += ["", table, *remarks(document), "", *document.notes]
    if document.rejected:
        parts += ["", "Not advised:"]
        for each in document.rejected[:_REJECTED]:
            many = f" (and {each.count - 1:,} like it)" if each.count > 1 else ""
            parts.append(f"  {each.deployment}{many}: {each.why}")
        if len(document.rejected) > _REJECTED:
            parts.append(f"  {len(document.rejected) - _REJECTED} more kinds with --json")
    parts += ["", why_measure(document)]
    if document.measure_next is not None:
        parts.append(f"  {document.measure_next.command}")
    if commands := describe_launch(document.plans[0]):
        parts += ["", "To start one replica of plan 1:", *(f"  {line}" for line in commands)]
    if document.study:
        parts += [
            "",
            f"{document.study} measures all of these: loadstone study run {document.study}",
        ]
    return [*parts, "", footer(document)]


def plan_table(document: Recommendation, names: list[str]) -> Table:
    """Make a table of the plans, which it calls `names`."""
    heads = ["plan", "GPUs", "P(SLO)", "headroom", "TTFT p50", "p99", "TPOT p50", "p99"]
    align = "lrrrruru"
    if document.plans[0].usd_per_month is not None:
        heads, align = [*heads, "$ a month", "$/M out", "80%"], f"{align}rru"
    rows = [[name, *_row(plan)] for name, plan in zip(names, document.plans, strict=True)]
    return Table(title="Plans", heads=heads, align=align, rows=rows)


def _row(plan: DeploymentPlan) -> list[str]:
    row = [
        str(plan.gpus),
        show_share(plan.p_slo),
        f"{plan.headroom:+,.0%}",
        *(
            show_seconds(each)
            for each in (plan.ttft_s.p50, plan.ttft_s.p99, plan.tpot_s.p50, plan.tpot_s.p99)
        ),
    ]
    if plan.usd_per_month is not None and plan.usd_per_mtok is not None:
        mtok = plan.usd_per_mtok
        row += [
            f"{plan.usd_per_month.value:,.0f}",
            f"{mtok.value:.2f}",
            f"{mtok.low:.2f} to {mtok.high:.2f}",
        ]
    return row


def remarks(document: Recommendation, *, gpus: bool = True) -> list[str]:
    """Say what is to be known of the plans, with `gpus` also the best plan of each kind of GPU."""
    plans = list(enumerate(document.plans, 1))
    priced = document.plans[0].usd_per_month_one_down is not None
    costs = [_describe_costs(document)] if priced else []
    checks = [f"Plan {number} was {plan.checked}." for number, plan in plans if plan.checked]
    hourly = [
        _describe_hours(number, plan.replicas, plan.by_hour)
        for number, plan in plans
        if plan.by_hour is not None
    ]
    why = [f"Plan {number}: {plan.why}." for number, plan in plans[:1] if plan.why]
    binds = [f"Plan {number}: {plan.binds}; {plan.helps}." for number, plan in plans]
    further = [f"Plan 1: {document.plans[0].further}."] if document.plans[0].further else []
    warned = by_key((each, number) for number, plan in plans for each in plan.warnings)
    warnings = [f"{_name_plans(numbers)}: {each}." for each, numbers in warned.items()]
    hourly += _describe_sessions(document)
    return [
        *binds,
        *why,
        *further,
        *costs,
        *checks,
        *hourly,
        *(_describe_gpus(document) if gpus else []),
        *warnings,
    ]


def _name_plans(numbers: list[int]) -> str:
    """Write `Plan 1`, `Plans 1 and 3`, `Plans 1–3`."""
    numbers = sorted(set(numbers))
    if len(numbers) == 1:
        return f"Plan {numbers[0]}"
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"Plans {numbers[0]}–{numbers[-1]}"
    return f"Plans {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def describe_launch(plan: DeploymentPlan) -> list[str]:
    """Return the commands of a replica, and the files that they name."""
    files = [
        line
        for name, content in plan.files.items()
        for line in (f"{name}:", *content.rstrip().splitlines())
    ]
    return [*plan.launch, *files]


def _describe_costs(document: Recommendation) -> str:
    """Say what the plans cost with a replica that may be down, and in whole nodes."""
    down = ", ".join(f"${plan.usd_per_month_one_down or 0.0:,.0f}" for plan in document.plans)
    nodes = [plan.usd_per_month_whole_nodes for plan in document.plans]
    line = f"With a replica more, so that one may be down: {down} a month"
    if any(each is not None for each in nodes):
        whole = ", ".join("the same" if each is None else f"${each:,.0f}" for each in nodes)
        line += f"; where GPUs are rented by the node: {whole}"
    return f"{line}."


def _describe_sessions(document: Recommendation) -> list[str]:
    lines = [
        f"Plan {number}: up to {show_number(plan.sessions_per_gpu)} sessions alive per GPU; under"
        f" the load one takes {show_seconds(plan.task_s.p50)} (p99"
        f" {show_seconds(plan.task_s.p99)}), with {plan.cached_share:.0%} cached."
        for number, plan in enumerate(document.plans, 1)
        if plan.sessions_per_gpu is not None and plan.task_s is not None
    ]
    if (host := document.host_memory) is None:
        return lines
    name = f"Host memory (kv_host={host.kv_host}{', assumed' * host.assumed})"
    if host.why:
        return [*lines, f"{name} is not weighed on plan 1: {host.why}."]
    dollars = " and ".join(f"${each:,.0f}" for each in host.usd_per_month or ())
    return [
        *lines,
        f"{name} {'pays' if host.pays else 'does not pay'} on plan 1: without and with it a GPU"
        " carries {:.3g} and {:.3g} sessions, {:.0%} and {:.0%} of prompts are cached"
        " under the larger load, and it takes {} and {} GPUs".format(
            *host.sessions_per_gpu, *host.cached_share, *host.gpus
        )
        + f"{dollars and f', {dollars} a month'}, by the best prediction.",
    ]


def _describe_gpus(document: Recommendation) -> list[str]:
    """Say of each kind of GPU what its best plan is, where there are several."""
    if len(document.by_gpu) < 2:
        return []
    lines = []
    for each in document.by_gpu:
        if each.deployment is None:
            lines.append(
                f"On {each.gpu}: nothing,"
                f" {each.why or 'none that holds the bounds within what is given'}."
            )
            continue
        cost = ""
        if each.usd_per_month is not None:
            cost = f", ${each.usd_per_month:,.0f} a month ({each.more_usd_per_month:+,.0f})"
        lines.append(
            f"On {each.gpu}: {each.replicas} × {each.deployment}, {each.gpus} GPUs{cost}, P"
            f" {show_share(each.p_slo)} ({100 * each.more_p_slo:+.0f})."
        )
    return lines


def _describe_hours(number: int, replicas: int, plan: ByHour) -> str:
    window = "hour" if plan.every_s == 3600 else f"{plan.every_s / 60:g} min"
    cost = plan.usd_per_month
    broken = (
        f"; in {plan.broken} of {len(plan.replicas)} not even all hold the bounds"
        if plan.broken
        else ""
    )
    paid = (
        f", ${cost.value:,.0f} a month ({cost.low:,.0f} to {cost.high:,.0f})"
        if cost is not None
        else ""
    )
    return (
        f"Plan {number} by the {window}: {min(plan.replicas)} to {max(plan.replicas)} replicas,"
        f" {plan.gpus:.1f} GPUs on average with {plan.start_up_s / 60:g} min to start{paid}:"
        f" {plan.saves:.0%} less than {replicas} all the time{broken}."
    )


def why_measure(document: Recommendation) -> str:
    step = document.measure_next
    if step is None:
        return "No single measurement is expected to change the choice for the better."
    unit = "a month" if document.plans[0].usd_per_month is not None else "GPUs"
    unit = "tokens/s" if document.objective == "throughput" else unit
    count = f", some {step.requests:,.0f} requests," if step.requests is not None else ""
    now, after = (
        f"{'$' * (unit == 'a month')}{_plain(regret)}"
        for regret in (step.regret_now, step.regret_after)
    )
    return (
        f"The {step.minutes:g} minutes{count} that are worth most: expected regret falls from {now}"
        f" to {after} {unit}. Give the run folder to --with afterwards."
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def footer(document: Recommendation) -> str:
    ranking_s, simulating_s = document.seconds["ranking"], document.seconds["simulating"]
    ranked, finalists = f"{document.deployments_ranked:,} deployments", len(document.finalists)
    return f"{ranked} ranked in {ranking_s:.1f} s, {finalists} simulated in {simulating_s:.1f} s"


def answer(document: Recommendation) -> str:
    """Say what to deploy, in shorthand, and what it holds."""
    best = document.plans[0]
    begins = "Deploy" if document.holds else say_nearest(document.confidence)
    return f"{begins} {best.replicas} × {best.deployment}: {claim(document)}."


def say_nearest(confidence: float) -> str:
    return f"Nothing holds with {show_share(confidence)}; the nearest is"


def claim(document: Recommendation) -> str:
    """Say what the first plan holds under which load, and how surely."""
    best = document.plans[0]
    traffic = document.traffic
    load = f"{traffic.value:{'.4g' if traffic.kind == 'rate' else 'g'}} {traffic.unit}"
    load += ", the busiest of the trace" if best.by_hour is not None else ""
    bounds = ", ".join(
        f"{each.metric} p{each.quantile * 100:g} < {show_seconds(each.bound_s)}"
        for each in document.slo
    )
    gpus = "1 GPU holds" if best.gpus == 1 else f"{best.gpus} GPUs hold"
    calls = "" if traffic.sessions is None else f"{traffic.sessions:.3g} calls of "
    gives = (
        f", and give {best.output_tokens_per_s:,.0f} tokens/s"
        if document.objective == "throughput"
        else ""
    )
    return (
        f"{gpus} {bounds} at {load} ({calls}{traffic.input_tokens:,.0f} tokens in,"
        f" {traffic.output_tokens:,.0f} out) with a probability of {show_share(best.p_slo)}{gives}"
    )
