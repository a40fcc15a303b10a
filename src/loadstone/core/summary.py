"""The numbers of a run, typed: what `loadstone bench --json` prints and `summary.json` keeps.

    summary = read(folder)                        of a run folder's summary.json
    summary = Summary.of(document)                of a document that is already decoded
    document = summary.document()                 what is printed: dicts, lists, numbers, text

A field with `= _null()` is printed as null where it is not known; one with `= None` is left out of
the document then. Times are seconds from the run's origin, latencies seconds, rates per second;
shares lie between 0 and 1. docs/metrics.md defines the metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from loadstone.core.document import Document
from loadstone.core.errors import InputError
from loadstone.core.files import read_json
from loadstone.core.plan import Load
from loadstone.core.record import Clock, RunStatus, Source, Stop, Target
from loadstone.core.settings import FirstToken, FleetFigures, FoundMax

if TYPE_CHECKING:
    from loadstone.core.statistics import Distribution

SCHEMA = 1
LATENCIES = (
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_s",
    "ttft_intended_s",
    "e2e_intended_s",
    "answer_s",
    "answer_intended_s",
)
"""Fields of Metrics that are latencies."""
TOTALS = (
    "input_tokens",
    "output_tokens",
    "cached_input_tokens",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "requests_per_s",
    "achieved_rate_per_s",
    "goodput_per_s",
    "attainment",
    "thinking_tokens",
    "thinking_share",
    "tool_call_tokens",
    "answer_tokens_per_s",
)
"""Fields of Metrics that a client can tell, beside its latencies."""
SLO_KEYS = ("ttft", "tpot", "e2e", "answer")
"""Latencies on which a request may have a bound."""
TASK = "task"
"""The time of a session, from its first call's sending to its last one's end, whose percentiles may
have bounds."""
_MAX_BYTES = 256 * 1024 * 1024
"""The largest summary.json that is read."""
QUEUE_GROWS = frozenset({"overload", "queue_grows"})
"""Findings on open loops in which requests begin faster than they end."""

Severity = Literal["info", "warning", "error"]
Bounds = Annotated[list[float | None], msgspec.Meta(min_length=2, max_length=2)]
"""[low, high]; a side that the values cannot give is None."""


def _null(name: str | None = None) -> Any:
    """Make the default of a field that is printed as null where it is not known."""
    return msgspec.field(name=name, default_factory=type(None))


class _Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of facts that are left out of a document where nobody knows them."""


# --- the verdict ----------------------------------------------------------------------------------


class Finding(_Figures, frozen=True):
    """A fact to know about a cell: the evidence, in words, and a remedy.

    severity  info: a reader should know it, and it spoils nothing; warning: some of the numbers do
              not mean what they seem to; error: some of what was asked for was not measured
    values    the numbers and names of which the words were made, with their units in their names;
              none where another program or an earlier version found it
    """

    kind: str
    severity: Severity
    evidence: str
    remedy: str
    values: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True):
    """`trusted`: no finding is a warning or an error. Findings are ordered by severity, errors
    first."""

    trusted: bool
    findings: list[Finding]

    def has(self, *kinds: str) -> bool:
        """Tell if one of the findings is of one of these kinds."""
        return any(finding.kind in kinds for finding in self.findings)

    def kinds(self, *severities: Severity) -> list[str]:
        """List the kinds of its findings of these severities, each once."""
        chosen = [finding.kind for finding in self.findings if finding.severity in severities]
        return list(dict.fromkeys(chosen))


# --- latencies and throughputs --------------------------------------------------------------------


class Latency(_Figures, kw_only=True, frozen=True):
    """Describes a sample of seconds in a dozen numbers; fields as in statistics.Distribution.

    Another tool's figures may lack any of them; both bounds of each percentile are then None, and
    so is `worth`.

    low, high  of a simulated run: the 80 % interval of p50; None where no interval is known
    """

    n: int | None = _null()
    mean: float | None = _null()
    std: float | None = _null()
    min: float | None = _null()
    max: float | None = _null()
    p50: float | None = _null()
    p90: float | None = _null()
    p95: float | None = _null()
    p99: float | None = _null()
    ci95: dict[str, Bounds] = {}
    worth: dict[str, int] | None = None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, values: Distribution | None) -> Latency | None:
        return None if values is None else cls(**msgspec.structs.asdict(values))

    def value(self, statistic: str) -> float | None:
        """`mean`, `p50`, …; None where it is not known, or none of these."""
        value = getattr(self, statistic, None)
        return value if isinstance(value, int | float) else None

    def bounds(self, statistic: str) -> tuple[float | None, float | None]:
        """Return the 95 % confidence interval of a statistic."""
        low, high = self.ci95.get(statistic, (None, None))
        return low, high


class Steady(_Figures, kw_only=True, frozen=True):
    """Throughput from the first to the last send of a measured request, while the load is full.

    output_tokens_per_s  tokens of both phases and any status that arrived within / (end_s −
                         start_s)
    total_tokens_per_s   that · (input_tokens + output_tokens)/output_tokens of the cell
    requests_per_s       that · ok and short requests/output_tokens of the cell
    ci95                 {"output_tokens_per_s": [low, high], …}: 95 % bounds, see
                         statistics.Dependence.rate_bounds()
    j_per_output_token   what all GPUs that were watched drew in the window, over the output tokens
                         that came in it;
    j_per_total_token    over input and output tokens

    Prompts and requests are counted by the tokens of their answers: at a moment of their own, as
    the first token or the end, they would come in waves, of which a window from send to send holds
    one more than of answers.
    """

    start_s: float
    end_s: float
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None = _null()
    requests_per_s: float
    ci95: dict[str, Bounds]
    inputs_per_s: float | None = None
    documents_per_s: float | None = None
    input_tokens_per_s: float | None = None
    j_per_output_token: float | None = None
    j_per_total_token: float | None = None


class Sustained(_Figures, kw_only=True, frozen=True):
    """Throughput in the long run of an open loop that keeps up: the rate times what a request has
    on average.

    output_tokens_per_s  load.value · mean output tokens; total_tokens_per_s with input tokens
    requests_per_s       load.value
    ci95                 {"output_tokens_per_s": [low, high], …}: 95 % bounds: as far as the mean is
                         known, and the lower one less by the growth of E2E that the cell does not
                         exclude (statistics.growth)
    """

    output_tokens_per_s: float | None
    total_tokens_per_s: float | None = _null()
    requests_per_s: float
    ci95: dict[str, Bounds]
    inputs_per_s: float | None = None
    documents_per_s: float | None = None
    input_tokens_per_s: float | None = None

    j_per_output_token: ClassVar[None] = None
    j_per_total_token: ClassVar[None] = None
    """The long run is of no window in which energy was read."""


class RateInterval(_Figures, kw_only=True, frozen=True):
    """The 80 % interval of a predicted throughput.

    value                  what the interval is of: what the cell gives in the long run, as far as
                           it tells
    low, high              with what was drawn, and the error of the performance model
    model_low, model_high  what the performance model alone leaves open
    """

    value: float | None = None
    low: float
    high: float
    model_low: float | None = None
    model_high: float | None = None


class Metrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The numbers of a cell, from its records to the report's page. None where nobody knows one.

    t0 is when a request was sent, t1 and tT when its first and last output arrived, T its output
    tokens. Latencies are over measured requests that are ok or short.

    ttft_s, ttft_intended_s  t1 − t0; t1 − intended; None where answers came in one piece, as tpot_s
                             and itl_s
    tpot_s                   (tT − t1)/(T − 1), for T ≥ 2
    itl_s                    gaps between tokens of all requests together, see arrays.token_gaps();
                             without bounds, because gaps that one engine step makes in many
                             requests are not independent
    e2e_s, e2e_intended_s    tT − t0; tT − intended: to the last output, not to the end of the
                             stream
    answer_s, answer_intended_s  to the first event that is no thinking: an answer's or a tool
                                 call's, and more than
                             white space after thinking; TTFT where nobody thinks
    thinking_tokens, tool_call_tokens  of output_tokens; thinking_share: of those whose channels are
                                       known
    answer_tokens_per_s      median over requests of (answer tokens − 1)/(last − first event that is
                             no thinking)
    input_tokens             of measured requests that produced a first token; None where never
                             reported
    output_tokens            that arrived for measured requests, whatever became of them
    output_events            stream events that carried those of ok and short requests
    cached_input_tokens      of measured requests; None where never reported
    shared_input_tokens      that measured requests share with earlier ones on purpose: the most a
                             cache could give
    shared_block_share       of the blocks of prompts, those that they share so: what others call
                             cache efficiency
    output_tokens_per_s      output_tokens / the cell's duration_s
    total_tokens_per_s       (input_tokens + output_tokens) / duration_s
    inputs_per_s             of requests for vectors, in the place of output tokens: their inputs /
                             duration_s; documents_per_s: of those for scores. input_tokens_per_s:
                             of both, as the server counts them
    requests_per_s           (ok + short) / duration_s
    achieved_rate_per_s      (sends − 1)/(last send − first send)
    j_per_output_token       joules of all GPUs that were watched, over the cell; j_per_total_token:
                             of input too
    attainment               requests that meet every bound / all measured requests, failed ones
                             included
    goodput_per_s            requests that meet every bound / duration_s
    interval                 of a simulated run: by throughput

    Other tools may tell a mean times the requests for a count.
    """

    ttft_s: Latency | None = _null()
    tpot_s: Latency | None = _null()
    itl_s: Latency | None = _null()
    e2e_s: Latency | None = _null()
    ttft_intended_s: Latency | None = _null()
    e2e_intended_s: Latency | None = _null()
    input_tokens: int | float | None = _null()
    output_tokens: int | float | None = _null()
    output_events: int | None = _null()
    cached_input_tokens: int | float | None = _null()
    output_tokens_per_s: float | None = _null()
    total_tokens_per_s: float | None = _null()
    requests_per_s: float | None = _null()
    steady: Steady | None = _null()
    sustained: Sustained | None = _null()
    achieved_rate_per_s: float | None = _null()
    shared_input_tokens: int | None = None
    answer_s: Latency | None = None
    answer_intended_s: Latency | None = None
    thinking_tokens: int | None = None
    thinking_share: float | None = None
    tool_call_tokens: int | None = None
    answer_tokens_per_s: float | None = None
    shared_block_share: float | None = None
    inputs_per_s: float | None = None
    documents_per_s: float | None = None
    input_tokens_per_s: float | None = None
    j_per_output_token: float | None = None
    j_per_total_token: float | None = None
    goodput_per_s: float | None = None
    attainment: float | None = None
    interval: dict[str, RateInterval] = {}

    ci95: ClassVar[Mapping[str, Bounds]] = {}
    """A whole cell's throughputs have no bounds of their own; see `steady`."""

    def latency(self, name: str) -> Latency | None:
        """One of LATENCIES, by its name."""
        values: Latency | None = getattr(self, name)
        return values


Window = Metrics | Steady | Sustained
"""Anything with throughputs, `ci95` and `j_per_output_token`: a whole cell, its steady window, the
long run."""


# --- parts of a cell ------------------------------------------------------------------------------


class Requests(_Figures, kw_only=True, frozen=True):
    """Measured requests by how they ended. `sent` is all of them; `short` ones are not counted
    under `ok`. Another tool may tell only some of the counts.
    """

    sent: int | None = _null()
    ok: int | None = _null()
    error: int | None = _null()
    timeout: int | None = _null()
    cancelled: int | None = _null()
    short: int | None = _null()

    @property
    def completed(self) -> int:
        """Requests that are ok or short, as far as these are told."""
        return (self.ok or 0) + (self.short or 0)

    @property
    def failed(self) -> int:
        """Requests that ended with an error or a timeout, as far as these are told."""
        return (self.error or 0) + (self.timeout or 0)

    @property
    def failed_share(self) -> float | None:
        """Share of the requests that came to an end; None where nobody tells."""
        ended = self.failed + self.completed
        return self.failed / ended if ended else None


class Part(_Figures, kw_only=True, frozen=True):
    """The numbers of some of a cell's requests: one turn's, one server's. Fields as in Metrics.

    mean_input_tokens, mean_output_tokens  of those that are ok or short; None where there are none,
                                           or not told
    token_share                            of the cell's output tokens
    """

    requests: Requests
    ttft_s: Latency | None = _null()
    tpot_s: Latency | None = _null()
    e2e_s: Latency | None = _null()
    ttft_intended_s: Latency | None = _null()
    e2e_intended_s: Latency | None = _null()
    input_tokens: int | None = _null()
    cached_input_tokens: int | None = _null()
    output_tokens: int
    mean_input_tokens: float | None = _null()
    mean_output_tokens: float | None = _null()
    token_share: float | None = _null()


class TurnPart(Part, kw_only=True, frozen=True):
    """One turn of all sessions, counted from 0.

    shared_input_tokens  that the plan's sessions share with earlier calls: the most a cache could
                         give; null where the plan does not say
    """

    turn: int
    shared_input_tokens: int | None = None


class SessionNumbers(_Figures, kw_only=True, frozen=True):
    """The numbers of a cell's measured sessions of agents. A session is measured if its first call
    is.

    sessions      that began; finished: of which every call ended well; failed: of which a call did
                  not
    task_s        of those finished: from the first call's sending to the last one's end
    model_s       mean time of a finished session in which calls were under way; tool_s: and in
                  which none was
    waiting_share of the finished sessions' time, the part in which they waited for tools
    per_hour      finished sessions / duration of the cell
    calls         mean calls of a session
    """

    sessions: int
    finished: int
    failed: int
    task_s: Latency | None = _null()
    model_s: float | None = _null()
    tool_s: float | None = _null()
    waiting_share: float | None = _null()
    per_hour: float | None = _null()
    calls: float | None = _null()


class ReplicaPart(Part, kw_only=True, frozen=True):
    """One server of a fleet, by its place in the target's URLs."""

    replica: int
    url: str | None = _null()


class PiecePart(Part, kw_only=True, frozen=True):
    """One piece of a load's profile: `seconds` long, from one rate or concurrency to another."""

    begin: float = msgspec.field(name="from")
    end: float = msgspec.field(name="to")
    seconds: float
    output_tokens_per_s: float


class Overtakes(msgspec.Struct, kw_only=True, frozen=True):
    """How often requests of a class met one of a lower priority, `traffic_class`, that waited for
    its first token, and how often they had theirs before it."""

    traffic_class: str
    met: int
    overtook: int


class ClassPart(Part, kw_only=True, frozen=True):
    """The requests of one class of traffic.

    share           of all measured requests; `planned_share`: of the plan's
    slots           of a closed loop; 0: it comes at a rate
    model           name that its requests use, of a model or an adapter; None: that of the run
    rejected        of the requests that failed, those that the server turned away; `rejected_for`:
                    by reason: 429, 503, or within a stream
    unknown_model   of the requests that failed, those whose model or adapter nobody there knows
    attainment      requests that meet every bound of their class / all of the class
    slo_met, p_slo  whether the class met its bounds, and the probability that it does
    goodput_per_s   those / duration of the cell; requests_per_s, output_tokens_per_s as in Metrics
    """

    name: str
    share: float | None = _null()
    planned_share: float
    slots: int = 0
    priority: int | None = None
    model: str | None = None
    rejected: int = 0
    rejected_for: dict[str, int] = {}
    unknown_model: int = 0
    overtakes: list[Overtakes] = []
    slo_met: bool | None = None
    p_slo: float | None = None
    attainment: float | None = None
    goodput_per_s: float | None = None
    requests_per_s: float | None = _null()
    output_tokens_per_s: float | None = _null()


class SizePart(Part, kw_only=True, frozen=True):
    """The requests whose pictures are of one size, or of sizes near each other.

    images, images_per_s   of those that are ok or short
    visual_tokens          of one picture, the median, by the server; visual_tokens_planned: by the
                           rule of the model or engine
    upload_share           of TTFT, until the kernel had taken the whole request; median
    body_bytes             of a request; median
    """

    size: str
    images: int
    images_per_s: float | None = _null()
    visual_tokens: float | None = None
    visual_tokens_planned: float | None = None
    upload_share: float | None = None
    body_bytes: float | None = None


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


class ServerFigures(_Figures, kw_only=True, frozen=True):
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
    j_per_token: where its GPUs were watched."""

    role: str
    gpu: str | None
    gpus: int
    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    j_per_token: float | None = None


class DraftFigures(_Figures, kw_only=True, frozen=True):
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
    accepted_length: float | None = _null()
    rate: float | None = _null()
    by_position: list[float] = []
    by_request: dict[str, float] = {}
    acceptance: float | None = _null()
    forced: str | None = None


class GpuFigures(_Figures, kw_only=True, frozen=True):
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


class PredictedPower(_Figures, kw_only=True, frozen=True):
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


class Client(_Figures, kw_only=True, frozen=True):
    """The client: 99th percentiles of its lags, whose clock stamped arrivals, processor seconds
    that its workers took, and what the host's self-test says of it, in a line.
    """

    send_lag_p99_s: float | None = _null()
    receive_lag_p99_s: float | None = _null()
    clock: Clock = msgspec.field(default_factory=lambda: "user")
    cpu_s: float | None = _null()
    selftest: str | None = None


class SloBound(_Figures, kw_only=True, frozen=True):
    """A bound on a latency, and whether it was met.

    bound            as it was written: `tpot_p99<30ms`; `metric` is its left side, `limit_s` its
                     right
    measured_s, value  seconds (both the same); of a bound on every request that of the slowest;
                       None where nothing
                     has one
    p_met            probability that a cell of as many requests in the long run, or on the real
                     machine, meets the bound; None where a prediction does not say how far it may
                     be off. A bound that failed requests miss has 0.
    p_most           the most that so many requests can say of a percentile, whatever its tail
    """

    bound: str
    metric: str
    limit_s: float
    measured_s: float | None = _null()
    value: float | None = _null()
    met: bool
    p_met: float | None = _null()
    p_most: float | None = None

    @property
    def is_short_of_requests(self) -> bool:
        """Tell whether it was met, and the number of requests alone makes that unsure."""
        return self.met and self.p_met == self.p_most and (self.p_most or 1.0) < 0.5


class Roofline(_Figures, kw_only=True, frozen=True):
    """Shares of what the hardware allows: 1 is as fast as it can be. What cannot be told is None.

    tpot_s      the least time of a step with as many requests decoding as there were
    ttft_s      the least time of one prompt, alone
    tpot_ratio  tpot_s / the median TPOT
    ttft_ratio  ttft_s / the median TTFT from sending
    mbu         bytes that the decode steps read, per second, over the memory bandwidth of all GPUs
    mfu         FLOPs of all tokens that were computed, per second, over the peak of all GPUs
    """

    tpot_s: float | None = _null()
    ttft_s: float | None = _null()
    tpot_ratio: float | None = _null()
    ttft_ratio: float | None = _null()
    mbu: float | None = _null()
    mfu: float | None = _null()


class ToolNumbers(_Figures, kw_only=True, frozen=True):
    """The cell's numbers under another tool's names: `tool` says whose, `definitions` has one for
    each."""

    name: str
    tool: str
    metrics: dict[str, int | float | None]
    definitions: dict[str, str]


class StatedNumber(msgspec.Struct, kw_only=True, frozen=True):
    """A number that an imported file reports, where the cell's own, of the file's requests, is
    another.

    metric      a field of Metrics; `statistic`: of its values, None of a throughput
    stated      by the file, in the unit of the metric
    ours        as it is shown, a throughput that of the long run (CellSummary.lasting)
    definition  what the tool's own is, in a line; None where that is not known
    """

    metric: str
    statistic: str | None = None
    stated: float
    ours: float
    definition: str | None = None


class TaskAccuracy(msgspec.Struct, kw_only=True, frozen=True):
    """The answers to one kind of question. Fields as in Accuracy."""

    task: str = ""
    questions: int
    accuracy: float | None
    low: float
    high: float


class Accuracy(TaskAccuracy, kw_only=True, frozen=True, omit_defaults=True):
    """The graded answers of a cell, under its load; of an imported one as far as a tool states
    them.

    name          of the questions' file
    share         of the cell's requests, warm-up left out, that were graded
    asked         graded requests; failed: those that did not end well, which no other count has
    questions     different ones that were answered; one that was asked again counts by the mean of
                  its answers
    accuracy      share of right answers, however they are said; `low`, `high`: 95 % (Wilson)
    strict        share that is right in the form that was asked for
    cut           answers that ended at the limit of their tokens, and count as wrong; thinking:
                  thinking alone
    unparsed      answers in which nothing could be the answer
    crossed       wrong answers with what another question asks for
    undecided     why no verdict is given, where none is
    tasks         by kind of question, where there are several
    part          latencies and tokens of graded requests, which the cell's own leave out
    """

    name: str
    asked: int
    strict: float | None = _null()
    share: float | None = _null()
    failed: int | None = _null()
    cut: int | None = _null()
    thinking: int | None = _null()
    unparsed: int | None = _null()
    crossed: int | None = _null()
    temperature: float | None = _null()
    undecided: str | None = _null()
    tasks: list[TaskAccuracy] = []
    part: Part | None = None


# --- a cell, a run --------------------------------------------------------------------------------


class CellSummary(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One load of a run.

    client             of a run that this project's client did not measure all of it is unknown
    measured_by        whose client measured an imported run
    definitions        the dialect by whose formulas an imported cell's numbers were made; null
                       where nobody knows, left out where they were made of its records
    graded             of answers that were graded
    stated             what an imported file states otherwise than its requests give it
    slo_per_request_s  bounds on each request: `ttft`, `tpot`, `e2e` to seconds
    p_slo              the probability that all bounds are met at once; of a prediction over its
                       joint errors
    dialect            the numbers by another tool's definitions, where these were asked for
    stopped            by which rule it ended, where one was set (--stop-when, --max-errors,
                       --max-duration)
    pools              what each pool gave, where prefill and decode have workers of their own
    roofline           printed as `light`: what the hardware allows beside the numbers; None where
                       nobody knows it
    """

    load: Load
    requests: Requests
    duration_s: float | None = _null()
    metrics: Metrics
    by_turn: list[TurnPart] = []
    by_replica: list[ReplicaPart] = []
    by_piece: list[PiecePart] = []
    by_class: list[ClassPart] = []
    by_size: list[SizePart] = []
    sessions: SessionNumbers | None = None
    client: Client = msgspec.field(default_factory=Client)
    measured_by: str | None = None
    definitions: str | UnsetType | None = UNSET
    stated: list[StatedNumber] = []
    graded: Accuracy | None = None
    verdict: Verdict
    server: ServerFigures | None = None
    gpu: GpuFigures | None = None
    power: PredictedPower | None = None
    drafts: DraftFigures | None = None
    pools: list[PoolFigures] = []
    slo_per_request_s: dict[str, float] = {}
    slo: list[SloBound] = []
    p_slo: float | None = None
    dialect: ToolNumbers | None = None
    stopped: Stop | None = None
    roofline: Roofline | None = _null("light")

    @property
    def is_impossible(self) -> bool:
        """True if a latency, or a gap between tokens, is below 0 by more than clocks are apart."""
        latencies = filter(None, map(self.metrics.latency, LATENCIES[:4]))
        return any(
            (value or 0.0) < -1e-3
            for latency in latencies
            for value in (latency.min, latency.mean, latency.p50)
        )

    @property
    def is_as_stated(self) -> bool:
        """True if it holds nothing but another tool's figures, which do not tell short answers."""
        return self.requests.short is None

    @property
    def queue_grows(self) -> bool:
        """True if it is an open loop whose queue grows. Until its last request is sent, the server
        takes up prompts, and most answers come later: the work between the first and the last send
        is no state of it.
        """
        return self.verdict.has(*QUEUE_GROWS)

    @property
    def steady(self) -> Steady | None:
        """The figures of the steady window; None where there is none, also because the queue
        grows."""
        return None if self.queue_grows else self.metrics.steady

    def lasting(self, *, steady: bool = True) -> Window:
        """The throughputs that tell what it gives in the long run, with their `ci95` where known:
        what comes, where that is kept up with; else what was delivered in the steady window, or in
        the whole cell.

        `steady`: False where none but whole cells are to be compared.
        """
        return self.metrics.sustained or (self.steady if steady else None) or self.metrics

    @property
    def rate_name(self) -> str:
        """The throughput that it is known by: output tokens, or inputs or documents."""
        pooled = ("inputs_per_s", "documents_per_s")
        stated = (name for name in pooled if getattr(self.metrics, name) is not None)
        return next(stated, "output_tokens_per_s")

    @property
    def slo_met(self) -> bool | None:
        """True if it met its bounds: every percentile, and per request every request; None where
        nothing was bounded. Where all bounds are on percentiles, attainment is told and demands
        nothing.
        """
        met = [bound.met for bound in self.slo]
        if self.metrics.attainment is not None and (self.slo_per_request_s or not met):
            met.append(self.metrics.attainment == 1)
        return all(met) if met else None

    @property
    def slo_probability(self) -> float | None:
        """The probability that it meets all its bounds; None where that is not known, or nothing
        was bounded.

        Of what was measured, bounds on one measure stand and fall together; those on several are
        independent.
        """
        return self.p_slo if self.p_slo is not None else _joint_probability(self.slo)


def _joint_probability(bounds: Iterable[SloBound]) -> float | None:
    """Return the probability that all bounds are met: those on one measure of one class stand and
    fall together, others are independent."""
    lowest: dict[str, float] = {}
    for bound in bounds:
        if bound.p_met is None:
            return None
        measure = bound.metric.rpartition("_")[0] or bound.metric
        lowest[measure] = min(bound.p_met, lowest.get(measure, 1.0))
    return math.prod(lowest.values()) if lowest else None


class PerGpu(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Agents per GPU at the highest load that keeps the bounds. `low`, `high`: those at which they
    surely hold, and surely fail; `per_mw`: over the power that was read, of what `boundary` says.
    """

    value: float
    low: float
    high: float | None = None
    per_mw: float | None = None
    boundary: str | None = None


class ScenarioResult(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Says how a run stands to the scenario that was asked for: which rules its loads broke, and
    which nobody checked."""

    name: str
    source: str
    keeps_rules: bool
    broken: list[str]
    unchecked: list[str] = []
    agents_per_gpu: PerGpu | None = None


class ClassChange(msgspec.Struct, frozen=True, kw_only=True):
    """Says what requests of a class took with another class beside them (`present_s`) and without
    it, each compared with itself, in seconds; low and high: 95 % of the difference, None of too
    few."""

    traffic_class: str
    cell: int
    metric: str
    statistic: str
    present_s: float
    absent_s: float
    difference_s: float
    low_s: float | None
    high_s: float | None
    pairs: int


class ClassCost(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a class costs the others; `run_dir`: of the run without it."""

    of: str
    run_dir: str
    changes: list[ClassChange]


class Summary(Document, msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run: what it was of, a CellSummary for each load that was begun, and findings that none of
    these can tell.

    start        how users of a closed loop began: staggered, or together
    first_token  of a simulated run: what the TTFT of its first prompt consists of
    fleet        replicas that came and went
    class_cost   of --without
    """

    schema: int
    run_id: str
    run_dir: str
    source: Source
    status: RunStatus
    target: Target | None = _null()
    plan_id: str
    seed: int
    cells: list[CellSummary]
    findings: list[Finding] = msgspec.field(default_factory=lambda: [])
    start: str | None = None
    first_token: FirstToken | None = None
    scenario: ScenarioResult | None = None
    fleet: FleetFigures | None = None
    class_cost: ClassCost | None = None

    @classmethod
    def of(cls, document: object) -> Summary:
        """Read a document as `document()` makes it. Raises InputError where it is none."""
        try:
            summary = msgspec.convert(document, cls)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InputError(f"not a summary ({error})") from error
        if summary.schema != SCHEMA:
            raise InputError(_other_schema(summary))
        return summary

    def document(self) -> dict[str, Any]:
        """The `--json` document. Keys are only ever added to it."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        for cell in document["cells"]:
            cell["load"]["profile"] = [list(piece) for piece in cell["load"]["profile"]]
            metrics = cell["metrics"]
            if any(bound["metric"].startswith(SLO_KEYS) for bound in cell.get("slo", ())):
                metrics.setdefault("goodput_per_s", None)
                metrics.setdefault("attainment", None)
            if self.source == "simulated":
                for values in filter(None, map(metrics.get, LATENCIES)):
                    values.setdefault("low", None)
                    values.setdefault("high", None)
        return document

    @property
    def trusted(self) -> bool:
        """Every planned cell was measured, is trusted, and met its bounds: what `--strict` asks
        for."""
        return (
            bool(self.cells)
            and all(finding.severity == "info" for finding in self.findings)
            and all(cell.verdict.trusted and cell.slo_met is not False for cell in self.cells)
        )


class SearchSummary(Summary, kw_only=True, omit_defaults=True):
    """A search for the highest load, as the run that its answer is about, with the cells of all its
    probes.

    run_dirs  the run folders of all probes, in their order
    max       the answer
    """

    run_dirs: list[str]
    max: FoundMax


def latency_field(base: str, load: Load) -> str:
    """The field of Metrics by which `ttft`, `tpot` or `e2e` counts: TTFT and E2E from sending in a
    closed loop, else from the intended time, since the user waits from then on.
    """
    return f"{base}_s" if load.is_closed or base == "tpot" else f"{base}_intended_s"


def mean_tokens(cells: Iterable[CellSummary]) -> tuple[float | None, float | None]:
    """Input and output tokens per request that is ok or short, over cells; None where no cell tells
    both."""
    requests = inputs = outputs = 0.0
    for cell in cells:
        metrics, done = cell.metrics, cell.requests.completed
        if done and metrics.input_tokens is not None and metrics.output_tokens is not None:
            try:
                requests += done
                inputs += metrics.input_tokens
                outputs += metrics.output_tokens
            except OverflowError:  # whole numbers in other tools' files have no bound
                return None, None
    return (inputs / requests, outputs / requests) if requests else (None, None)


def finite(value: float | None) -> float | None:
    """A number that is none (NaN) or has no end as None: records and files that others made may
    give such."""
    try:
        return value if value is not None and math.isfinite(value) else None
    except OverflowError:  # a whole number that is larger than any float
        return None


def read(folder: Path, remedy: str | None = None) -> Summary:
    """The summary.json of a run folder. Raises InputError, one line, where it is not there or no
    summary.

    `remedy`: what to do then; None: to make it again from the run's records.
    """
    path = folder / "summary.json"
    remedy = remedy or f"`loadstone recover {folder}` makes it again"
    summary = read_json(path, Summary, _MAX_BYTES, "a summary", remedy)
    if summary.schema != SCHEMA:
        raise InputError(f"{path}: {_other_schema(summary)}; {remedy}")
    return summary


def _other_schema(summary: Summary) -> str:
    return f"summary of schema {summary.schema}; this version of Loadstone reads {SCHEMA}"
