"""Rules on what servers and GPUs reported of themselves."""

import numpy as np

from loadstone.analyse.verdict import thresholds
from loadstone.analyse.verdict.finding import Findings, finding
from loadstone.analyse.verdict.requests import JudgedCell
from loadstone.core import arrays


def engine(cell: JudgedCell) -> Findings:
    """Tell what servers reported of themselves: restarts, engines behind a router, late writes,
    preemptions."""
    server, tpot = cell.server, cell.tpot
    if server is None:
        return
    if server.restarts:
        yield finding("engine_restarted", restarts=server.restarts)
    if server.in_turns:
        addresses = server.in_turns if server.in_turns > 1 else None
        yield finding("engines_in_turns", addresses=addresses)
    if server.write_late_s is not None and tpot is not None:
        shown_s = max(thresholds.SERVER_LATE_S, thresholds.SPOILT_SHARE * tpot.p50)
        if server.write_late_s >= shown_s:
            yield finding("server_writes_late", late_s=server.write_late_s, tpot_s=tpot.p50)
    if server.preemptions:
        usage = server.kv_usage.max if server.kv_usage is not None else None
        yield finding("preemptions", preemptions=server.preemptions, kv_usage_share=usage)


def counters(cell: JudgedCell) -> Findings:
    """Find what the engines count otherwise than the answers tell: fewer output tokens, a later
    first token. More tokens may be another client's."""
    server, requests = cell.server, cell.requests
    if server is None:
        return
    billed, made = float(np.nansum(cell.completed.output_tokens)), server.output_tokens
    if made and made < thresholds.COUNTED_SHARE * billed:
        yield finding("counters_differ", made=made, billed=billed)
        return
    parts = server.ttft_parts
    parts_s = (
        0.0 if parts is None or cell.has_pools else (parts.queue_s or 0) + (parts.prefill_s or 0)
    )
    counted_s = max(server.ttft_s or 0.0, parts_s)
    ttft_s = arrays.drop_missing(requests.first_s - requests.sent_s)  # the warm-up's too
    if not cell.streams or not len(ttft_s):
        return
    mean_s = float(ttft_s.mean())
    if counted_s > thresholds.COUNTED_TIMES * mean_s + thresholds.COUNTED_S:
        yield finding("counters_differ.ttft", counted_s=counted_s, ttft_s=mean_s)


def transfers(cell: JudgedCell) -> Findings:
    """Tell where prefill workers handed over fewer KV caches than there were answers: one side
    served some alone."""
    server, done = cell.server, cell.requests.completed
    if server is None or not cell.has_pools:
        return
    # An engine counts either.
    unit, handed_over, answered, missed = "requests", server.transfers, float(done.sum()), 0.0
    if handed_over is None:
        unit, handed_over = "prompt tokens", server.transferred_tokens
        answered = float(cell.requests.input_tokens[done].sum())
        missed = thresholds.NOT_HANDED_OVER_SHARE
    if handed_over is not None and handed_over < (1 - missed) * answered:
        yield finding("transfers_differ", handed_over=handed_over, unit=unit, answered=answered)
    elif server.transfers_failed:
        yield finding("transfers_differ.failed", failed=server.transfers_failed)


def drafts(cell: JudgedCell) -> Findings:
    """Tell where an acceptance of drafts is no evidence: it was forced, or the prompts are words
    drawn at random."""
    figures = cell.drafts
    if figures is None:
        return
    length = figures.accepted_length or None
    came = float(np.nansum(cell.requests.output_tokens))
    if figures.source == "counters" and figures.steps and came:
        made = figures.steps + (figures.accepted or 0.0)
        if made > came / thresholds.COUNTED_SHARE and figures.steps < came:
            yield finding(
                "drafts_beyond_end",
                accepted_length=length,
                counted=made,
                came=came,
                at_most=came / figures.steps,
            )
            return
    if figures.forced:
        yield finding("drafts_forced", accepted_length=length, switch=figures.forced)
    elif not (cell.plan.prompts or cell.plan.is_real_text):
        yield finding("drafts_on_random_text", accepted_length=length, accepted_share=figures.rate)


def profiled(cell: JudgedCell) -> Findings:
    """Tell where the engine's profiler may have run while the load was measured."""
    if cell.info.profiler is not None:
        yield finding("profiled", seen=cell.info.profiler)


def gpu(cell: JudgedCell) -> Findings:
    """Tell what held the GPUs' clocks down, and if they were read too seldom to know their energy.

    Heat and failing supplies are a warning; the power cap alone is an info.
    """
    gpus = cell.gpus
    if gpus is None:
        return
    shares = {name: share for name, share in gpus.throttled.items() if name in thresholds.HELD_DOWN}
    worst = max(shares.values(), default=0.0)
    readings = round(worst * gpus.samples)
    faulty = worst >= thresholds.HELD_DOWN_SHARE and readings >= thresholds.LEAST_HELD_DOWN
    if not faulty:
        shares = {"power_cap": gpus.throttled.get("power_cap", 0.0)}
    if faulty or shares["power_cap"] >= thresholds.CAPPED_SHARE:
        yield finding(
            "gpu_throttled" if faulty else "gpu_throttled.power_cap",
            reasons=[
                {"reason": name.replace("_", " "), "share": share} for name, share in shares.items()
            ],
            readings=gpus.samples,
            clock_mhz=gpus.sm_clock_min_mhz,
        )
    if gpus.power_gap_s is not None and gpus.energy_j is None:
        yield finding("power_gap", gap_s=gpus.power_gap_s)
    elif gpus.new_every_s is not None and gpus.energy_j is None:
        yield finding("gpu_read_seldom", every_s=gpus.new_every_s)
