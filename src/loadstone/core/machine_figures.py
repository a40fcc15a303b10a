"""Holds what servers, drafts and GPUs said of themselves over a cell, and the watts predicted."""

from __future__ import annotations

import msgspec

from loadstone.core.document import DocumentPart, null
from loadstone.core.metrics import Bounds


class Level(msgspec.Struct, frozen=True):
    """A quantity that was read again and again."""

    mean: float
    max: float


class TtftParts(msgspec.Struct, kw_only=True, frozen=True):
    """Seconds of a request before its first token, as the engines count them; means, None where
    they do not.

    queue_s, prefill_s  of a request; of pools, in both together
    transfer_s          of one KV cache from prefill to decode; vLLM counts it in the decode
                        worker's queue too
    """

    queue_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None


class ServerFigures(DocumentPart, kw_only=True, frozen=True):
    """The servers of a target together, over one cell from its start to its end; None, and left out
    of JSON, where unknown.

    samples         times that /metrics was read within; a gauge is known from these alone
    restarts        times that an engine began anew
    in_turns        servers behind whose one address several engines answer in turn: nothing else is
                    known of them
    running         requests; a sum over servers, as is `waiting`
    kv_usage        share of the KV cache in use, mean over servers
    preemptions     requests put back in the queue with their KV lost
    prefix_hits     prompt tokens taken from a prefix cache
    prefix_queries  prompt tokens looked for in it
    picture_hits    pictures taken from a cache of prepared ones; picture_queries: looked for in it
    draft_…         steps that verified drafts, tokens drafted, of these accepted, all and by place
                    in the draft
    accepted_length tokens that such a step gives, as gauges have it
    output_tokens   that were made; ttft_s: mean, as the engines count both
    write_late_s    how long after its due time a token was written, mean, where the server knows
                    its due times
    transfers       KV caches that prefill workers handed to decode workers, and `transfers_failed`
    transferred_tokens  prompt tokens that decode workers had from prefill workers, or still had of
                        earlier transfers
    """

    samples: int
    restarts: int
    in_turns: int = 0
    running: Level | None = None
    waiting: Level | None = None
    kv_usage: Level | None = None
    preemptions: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    picture_hits: float | None = None
    picture_queries: float | None = None
    output_tokens: float | None = None
    ttft_s: float | None = None
    write_late_s: float | None = None
    draft_steps: float | None = None
    draft_tokens: float | None = None
    draft_accepted: float | None = None
    draft_accepted_by_position: list[float] | None = None
    accepted_length: Level | None = None
    transfers: float | None = None
    transferred_tokens: float | None = None
    transfers_failed: float | None = None
    ttft_parts: TtftParts | None = None


class PoolFigures(msgspec.Struct, kw_only=True, frozen=True):
    """Holds what a pool of a deployment gave in a cell: prompt tokens of one that prefills, answer
    tokens of one that decodes, over the window of CellSummary.lasting(); `gpus` of all its workers.
    j_per_token: where its GPUs were watched; busy_share: where PooledCell has it."""

    role: str
    gpu: str | None
    gpus: int
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    j_per_token: float | None = None
    busy_share: float | None = None


class DraftFigures(DocumentPart, kw_only=True, frozen=True):
    """Speculative decoding of a cell; see analyse/drafts.py.

    source           counters: the servers', over the measured requests; requests: what their
                     answers state; gauge: the servers' newest values, averaged
    accepted_length  tokens that a step gives, 1 + accepted/steps; rate: accepted/drafted
    by_position      share of the steps that accepted their first, second, … guess
    by_request       accepted lengths of single requests: `n`, `p10`, `p50`, `p90`
    acceptance       of a guess if all before it were accepted: what --acceptance takes
    forced           the switch by which the engine accepts as many as it is told
    """

    source: str
    steps: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    accepted_length: float | None = null()
    rate: float | None = null()
    by_position: list[float] = []
    by_request: dict[str, float] = {}
    acceptance: float | None = null()
    forced: str | None = None


class GpuFigures(DocumentPart, kw_only=True, frozen=True):
    """The GPUs that were watched, together, over one cell; None, and left out of JSON, where
    unknown.

    samples      readings within the cell, all GPUs together
    throttled    reason (of gpu_metrics.REASONS) to the share of the readings in which it held the
                 clock down
    energy_j     of all GPUs over the cell, see Readings.energy_j
    power_w_by_pool  mean over the window of the throughputs, of pools whose exporters were named
    new_every_s  how often the power that is told was a new one, where most readings repeated the
                 one before
    power_gap_s  the longest stretch in which no power was read, where that is too long
    other fields of all GPUs: power summed; clocks and busy share averaged, and the lowest clock;
    memory's largest sum
    """

    gpus: int
    samples: int
    throttled: dict[str, float]
    power_w: Level | None = None
    sm_clock_mhz: Level | None = None
    sm_clock_min_mhz: float | None = None
    memory_used_bytes: float | None = None
    busy_share: Level | None = None
    energy_j: float | None = None
    power_w_by_pool: dict[str, float] = {}
    new_every_s: float | None = None
    power_gap_s: float | None = None


class PredictedPower(DocumentPart, kw_only=True, frozen=True):
    """Holds what a deployment would draw, with 80 % intervals: of GpuFigures.power_w, of joules per
    token.

    boards_w  of all boards
    boundary  whose watts `drawn_w` are; dollars are of their electricity
    unknown   why nothing is predicted
    """

    boundary: str
    boards_w: float | None = None
    power_w: Bounds | None = None
    j_per_output_token: Bounds | None = None
    j_per_total_token: Bounds | None = None
    drawn_w: float | None = None
    usd_per_mtok: float | None = None
    unknown: str = ""
