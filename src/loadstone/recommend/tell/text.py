"""A recommendation as a person reads it: the answer first."""

from collections.abc import Iterator, Sequence

from loadstone.core.groups import by_key
from loadstone.core.units import show_gpus, show_number, show_seconds, show_share
from loadstone.recommend.judge.autoscaled import AutoscaledPlan
from loadstone.recommend.judge.by_hour import ByHour
from loadstone.recommend.judge.host_memory import HostMemory
from loadstone.recommend.tell.document import DeploymentPlan, Recommendation
from loadstone.report.data.wording import spell
from loadstone.report.pages.explanations import describe_power
from loadstone.report.table import MAX_NOTES, Footnote, Shown, Table

ROUTED = {
    "prefix": " behind a router by prefix",
    "hashed": " behind a router by session",
    "round-robin": " behind a router in turn",
}
_MAX_REJECTED = 8
"""Kinds of deployments that are not advised and are shown."""


def render(document: Recommendation, explain: bool = True) -> list[Shown]:
    """Show the answer, the plans, what to measure next and how to start.

    explain: also show every remark, and why others are not advised.
    """
    numbered = list(enumerate(document.plans, 1))
    parts: list[Shown] = [spell(answer(document)), ""]
    parts += [f"{number}: {plan.replicas} × {plan.deployment}" for number, plan in numbered]
    parts += [plan_table(document, [str(number) for number, _ in numbered])]
    if explain:
        parts += [spell(line) for line in (*remarks(document), *document.notes)]
        parts += _list_rejected(document)
    else:
        parts += [spell(line) for line in _first_notes(document)]
    parts += ["", why_measure(document)]
    if document.measure_next is not None:
        parts.append(f"  {document.measure_next.command}")
    commands = describe_launch(document.plans[0])
    if commands:
        parts += ["", "To start one replica of plan 1:", *(f"  {line}" for line in commands)]
    if document.study:
        parts += ["", f"next: loadstone study run {document.study}  (measures all of these)"]
    hint = "" if explain else "; --explain has all reasons"
    return [*parts, "", Footnote(f"{footer(document)}{hint}")]


def _first_notes(document: Recommendation) -> list[str]:
    """Return the remarks that a choice most depends on, three at most."""
    first = document.plans[0]
    why = [f"Plan 1 is {first.why}."] if first.why else []
    warned = [f"Plan 1: {warning}." for warning in first.warnings]
    fewer = [f"Plan 1: {first.one_fewer.why}."] if first.one_fewer else []
    binds = f"Plan 1: {first.binds}. {first.helps}."
    return [*why, *fewer, binds, *warned, *document.notes][:MAX_NOTES]


def _list_rejected(document: Recommendation) -> list[Shown]:
    """List deployments that are not advised, with the reason."""
    if not document.rejected:
        return []
    parts: list[Shown] = ["", "Not advised:"]
    for rejected in document.rejected[:_MAX_REJECTED]:
        alike = f" (and {rejected.count - 1:,} like it)" if rejected.count > 1 else ""
        parts.append(f"  {rejected.deployment}{alike}: {rejected.why}")
    if len(document.rejected) > _MAX_REJECTED:
        parts.append(f"  {len(document.rejected) - _MAX_REJECTED} more kinds with --json")
    return parts


def plan_table(document: Recommendation, names: list[str]) -> Table:
    """Make a table of the plans, which it calls `names`."""
    heads, align = ["plan", "GPUs", "P(SLO)", "headroom"], "lrrr"
    for name in document.plans[0].latencies:
        heads, align = [*heads, f"{name} p50", "p99"], f"{align}ru"
    if document.plans[0].usd_per_month is not None:
        paid = "$/M in" if document.traffic.texts else "$/M out"
        heads, align = [*heads, "$ a month", paid, "80%"], f"{align}rru"
    rows = [[name, *_row(plan)] for name, plan in zip(names, document.plans, strict=True)]
    return Table(title="Plans", heads=heads, align=align, rows=rows)


def _row(plan: DeploymentPlan) -> list[str]:
    latencies = [seconds for span in plan.latencies.values() for seconds in (span.p50, span.p99)]
    row = [
        str(plan.gpus),
        show_share(plan.p_slo),
        f"{plan.headroom:+,.0%}",
        *map(show_seconds, latencies),
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
    numbered = list(enumerate(document.plans, 1))
    first = document.plans[0]
    lines = [f"Plan {number}: {plan.binds}. {plan.helps}." for number, plan in numbered]
    if first.why:
        lines.append(f"Plan 1 is {first.why}.")
    lines += [
        f"Plan {number}: {plan.one_fewer.why}." for number, plan in numbered if plan.one_fewer
    ]
    if first.further:
        lines.append(f"Plan 1: {first.further}.")
    if first.usd_per_month_one_down is not None:
        lines.append(_describe_costs(document))
    lines += _describe_power(numbered)
    lines += [f"Plan {number} was {plan.checked}." for number, plan in numbered if plan.checked]
    for number, plan in numbered:
        if plan.by_hour is not None:
            lines.append(_describe_hours(number, plan.replicas, plan.by_hour))
    lines += map(_describe_autoscaled, document.autoscaled)
    lines += _describe_sessions(document)
    if document.host_memory is not None:
        lines.append(_describe_host_memory(document.host_memory))
    if gpus and len(document.by_gpu) > 1:
        lines += _describe_gpus(document)
    warned = by_key((warning, number) for number, plan in numbered for warning in plan.warnings)
    return [
        *lines,
        *(f"{_name_plans(numbers)}: {warning}." for warning, numbers in warned.items()),
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
    lines = list(plan.launch)
    for name, content in plan.files.items():
        lines += [f"{name}:", *content.rstrip().splitlines()]
    return lines


def _describe_costs(document: Recommendation) -> str:
    """Say what the plans cost with a replica that may be down, and in whole nodes."""
    costs = ", ".join(f"${plan.usd_per_month_one_down or 0.0:,.0f}" for plan in document.plans)
    nodes = [plan.usd_per_month_whole_nodes for plan in document.plans]
    line = f"With a replica more, so that one may be down: {costs} a month"
    if any(cost is not None for cost in nodes):
        whole = ", ".join("the same" if cost is None else f"${cost:,.0f}" for cost in nodes)
        line += f"; where GPUs are rented by the node: {whole}"
    return f"{line}."


def _describe_power(plans: Sequence[tuple[int, DeploymentPlan]]) -> Iterator[str]:
    """Say what each plan draws; once why nothing is known."""
    powers = [(number, plan.power) for number, plan in plans if plan.power and plan.power.drawn_w]
    for number, power in powers:
        yield f"Plan {number} would draw {show_number(power.boards_w)} W{describe_power(power)}."
    for why in dict.fromkeys(plan.power.unknown for _, plan in plans if plan.power):
        if why:
            yield f"Watts are not known: {why}."


def _describe_sessions(document: Recommendation) -> list[str]:
    return [
        f"Plan {number}: up to {show_number(plan.sessions_per_gpu)} sessions alive per GPU; under"
        f" the load one takes {show_seconds(plan.task_s.p50)} (p99"
        f" {show_seconds(plan.task_s.p99)}), with {plan.cached_share:.0%} cached."
        for number, plan in enumerate(document.plans, 1)
        if plan.sessions_per_gpu is not None and plan.task_s is not None
    ]


def _describe_host_memory(host: HostMemory) -> str:
    name = f"Host memory (kv_host={host.kv_host}{', assumed' if host.assumed else ''})"
    if host.why:
        return f"{name} is not weighed on plan 1: {host.why}."
    sessions, cached = host.sessions_per_gpu, host.cached_share
    cost = ""
    if host.usd_per_month:
        cost = f", ${host.usd_per_month[0]:,.0f} and ${host.usd_per_month[1]:,.0f} a month"
    return (
        f"{name} {'pays' if host.pays else 'does not pay'} on plan 1: without and with it a GPU"
        f" carries {sessions[0]:.3g} and {sessions[1]:.3g} sessions, {cached[0]:.0%} and"
        f" {cached[1]:.0%} of prompts are cached under the larger load, and it takes"
        f" {host.gpus[0]} and {show_gpus(host.gpus[1])}{cost}, by the best prediction."
    )


def _describe_gpus(document: Recommendation) -> Iterator[str]:
    """Say of each kind of GPU what its best plan is."""
    for best in document.by_gpu:
        if best.deployment is None:
            why = best.why or "none that holds the bounds within what is given"
            yield f"On {best.gpu}: nothing, {why}."
            continue
        cost = ""
        if best.usd_per_month is not None:
            cost = f", ${best.usd_per_month:,.0f} a month ({best.more_usd_per_month:+,.0f})"
        points = round(100 * best.p_slo) - round(100 * document.plans[0].p_slo)
        yield (
            f"On {best.gpu}: {best.replicas} × {best.deployment},"
            f" {show_gpus(best.gpus)}{cost}, {show_share(best.p_slo)} sure"
            f" ({points:+d} points)."
        )


def _describe_hours(number: int, replicas: int, plan: ByHour) -> str:
    window = "hour" if plan.every_s == 3600 else f"{plan.every_s / 60:g} min"
    broken, paid = "", ""
    if plan.broken:
        broken = f"; in {plan.broken} of {len(plan.replicas)} not even all hold the bounds"
    if plan.usd_per_month is not None:
        cost = plan.usd_per_month
        paid = f", ${cost.value:,.0f} a month ({cost.low:,.0f} to {cost.high:,.0f})"
    return (
        f"Plan {number} by the {window}: {min(plan.replicas)} to {max(plan.replicas)} replicas,"
        f" {plan.gpus:.1f} GPUs on average with {plan.start_up_s / 60:g} min to start{paid}:"
        f" {plan.saves:.0%} less than {replicas} all the time{broken}."
    )


def _describe_autoscaled(plan: AutoscaledPlan) -> str:
    """Say what the first plan costs under an autoscaler."""
    values = f"{plan.min} to {plan.max} replicas"
    if plan.target is not None:
        values = f"{plan.metric} {plan.target:g} a replica, {values}"
    point, static = plan.point, plan.static
    holds = "holds" if point.met else "does NOT hold"
    text = (
        f"Plan 1 under {plan.autoscaler} ({values}) {holds} the bounds by the best prediction:"
        f" {show_share(point.attainment, 1)} of requests within them, with"
        f" {point.gpu_hours:.3g} GPU-hours of {plan.requests:,} requests"
    )
    if static is None or not static.gpu_hours or point.gpu_hours is None:
        return f"{text}."
    change = 1 - point.gpu_hours / static.gpu_hours
    word = "less" if change > 0 else "more"
    return f"{text}, {abs(change):.0%} {word} than {static.replicas:.3g} replicas all the time."


def why_measure(document: Recommendation) -> str:
    """Say what the advised measurement is worth."""
    step = document.measure_next
    if step is None:
        return "No single measurement is expected to change the choice for the better."
    sign, unit = "", "GPUs"
    if document.objective == "throughput":
        unit = "tokens/s"
    elif document.plans[0].usd_per_month is not None:
        sign, unit = "$", "a month"
    return (
        f"Best next test (about {step.minutes:g} min): it cuts the expected cost of a wrong choice"
        f" from {sign}{_plain(step.regret_now)} to {sign}{_plain(step.regret_after)} {unit}. Give"
        " its run folder to --with afterwards."
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def footer(document: Recommendation) -> str:
    """Say how much was looked at, and how long it took."""
    ranking_s, simulating_s = document.seconds["ranking"], document.seconds["simulating"]
    ranked, finalists = f"{document.deployments_ranked:,} deployments", len(document.finalists)
    by = "" if document.plans[0].usd_per_month else " by GPUs, since no --price is given"
    return (
        f"{ranked} ranked in {ranking_s:.1f} s{by}, {finalists} simulated in {simulating_s:.1f} s"
    )


def answer(document: Recommendation) -> str:
    """Say what to deploy, in shorthand, and what it holds."""
    best = document.plans[0]
    begins = "Deploy" if document.holds else say_nearest(document.confidence)
    routed = ROUTED.get(best.route or "", "")
    return f"{begins} {best.replicas} × {best.deployment}{routed}: {claim(document)}."


def say_nearest(confidence: float) -> str:
    return f"Nothing holds with {confidence * 100:g}%; the nearest is"


def claim(document: Recommendation) -> str:
    """Say what the first plan holds under which load, and how surely."""
    best = document.plans[0]
    busiest = "" if best.by_hour is None else ", the busiest of the trace"
    gives = ""
    if document.objective == "throughput":
        gives = f", and give {best.output_tokens_per_s:,.0f} tokens/s"
    return (
        f"{show_gpus(best.gpus)} hold{'s' * (best.gpus == 1)} {show_bounds(document)}"
        f" at {show_traffic(document)}{busiest} ({show_lengths(document)})"
        f" with a probability of {show_stated(best.p_slo, document.confidence)}{gives}"
    )


def show_stated(p_slo: float, confidence: float) -> str:
    """Write the probability of a plan; one below the asked one never looks like it."""
    short = p_slo < confidence and show_share(p_slo) == show_share(confidence)
    return show_share(p_slo, int(short))


def show_bounds(document: Recommendation) -> str:
    """Write `tpot p99 < 50.0 ms`, of all bounds."""
    return ", ".join(
        f"{bound.metric} p{bound.quantile * 100:g} < {show_seconds(bound.bound_s)}"
        for bound in document.slo
    )


def show_traffic(document: Recommendation) -> str:
    """Write `20 requests/s`."""
    traffic = document.traffic
    return f"{traffic.value:{'.4g' if traffic.kind == 'rate' else 'g'}} {traffic.unit}"


def show_lengths(document: Recommendation) -> str:
    """Write `2,048 tokens in, 500 out`, of sessions with the number of their calls."""
    traffic = document.traffic
    if traffic.texts:
        texts = "1 text" if traffic.texts == 1 else f"{traffic.texts:.3g} texts"
        return f"{texts} of {traffic.input_tokens / traffic.texts:,.0f} tokens each"
    calls = "" if traffic.sessions is None else f"{traffic.sessions:.3g} calls of "
    return f"{calls}{traffic.input_tokens:,.0f} tokens in, {traffic.output_tokens:,.0f} out"
