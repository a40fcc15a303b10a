"""Defines the numbers of a cell: latencies, tokens, throughputs, and how its requests ended.

docs/metrics.md has the reasons. Latencies are seconds, rates per second; shares lie between 0 and
1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from loadstone.core.document import DocumentPart, null
from loadstone.core.plan import Load

if TYPE_CHECKING:
    from loadstone.core.statistics import Distribution

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
Bounds = Annotated[list[float | None], msgspec.Meta(min_length=2, max_length=2)]
"""[low, high]; a side that the values cannot give is None."""


class Latency(DocumentPart, kw_only=True, frozen=True):
    """Describes a sample of seconds in a dozen numbers; fields as in statistics.Distribution.

    Another tool's figures may lack any of them; both bounds of each percentile are then None, and
    so is `worth`.

    low, high  of a simulated run: the 80 % interval of p50; None where no interval is known
    """

    n: int | None = null()
    mean: float | None = null()
    std: float | None = null()
    min: float | None = null()
    max: float | None = null()
    p50: float | None = null()
    p90: float | None = null()
    p95: float | None = null()
    p99: float | None = null()
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


class Steady(DocumentPart, kw_only=True, frozen=True):
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
    total_tokens_per_s: float | None = null()
    requests_per_s: float
    ci95: dict[str, Bounds]
    inputs_per_s: float | None = None
    documents_per_s: float | None = None
    input_tokens_per_s: float | None = None
    j_per_output_token: float | None = None
    j_per_total_token: float | None = None


class Sustained(DocumentPart, kw_only=True, frozen=True):
    """Throughput in the long run of an open loop that keeps up: the rate times what a request has
    on average.

    output_tokens_per_s  load.value · mean output tokens; total_tokens_per_s with input tokens
    requests_per_s       load.value
    ci95                 {"output_tokens_per_s": [low, high], …}: 95 % bounds: as far as the mean is
                         known, and the lower one less by the growth of E2E that the cell does not
                         exclude (statistics.growth)
    """

    output_tokens_per_s: float | None
    total_tokens_per_s: float | None = null()
    requests_per_s: float
    ci95: dict[str, Bounds]
    inputs_per_s: float | None = None
    documents_per_s: float | None = None
    input_tokens_per_s: float | None = None

    j_per_output_token: ClassVar[None] = None
    j_per_total_token: ClassVar[None] = None
    """The long run is of no window in which energy was read."""


class RateInterval(DocumentPart, kw_only=True, frozen=True):
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

    ttft_s: Latency | None = null()
    tpot_s: Latency | None = null()
    itl_s: Latency | None = null()
    e2e_s: Latency | None = null()
    ttft_intended_s: Latency | None = null()
    e2e_intended_s: Latency | None = null()
    input_tokens: int | float | None = null()
    output_tokens: int | float | None = null()
    output_events: int | None = null()
    cached_input_tokens: int | float | None = null()
    output_tokens_per_s: float | None = null()
    total_tokens_per_s: float | None = null()
    requests_per_s: float | None = null()
    steady: Steady | None = null()
    sustained: Sustained | None = null()
    achieved_rate_per_s: float | None = null()
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


class Requests(DocumentPart, kw_only=True, frozen=True):
    """Measured requests by how they ended. `sent` is all of them; `short` ones are not counted
    under `ok`. Another tool may tell only some of the counts.
    """

    sent: int | None = null()
    ok: int | None = null()
    error: int | None = null()
    timeout: int | None = null()
    cancelled: int | None = null()
    short: int | None = null()

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


def latency_field(base: str, load: Load) -> str:
    """The field of Metrics by which `ttft`, `tpot` or `e2e` counts: TTFT and E2E from sending in a
    closed loop, else from the intended time, since the user waits from then on.
    """
    return f"{base}_s" if load.is_closed or base == "tpot" else f"{base}_intended_s"


def finite(value: float | None) -> float | None:
    """A number that is none (NaN) or has no end as None: records and files that others made may
    give such."""
    try:
        return value if value is not None and math.isfinite(value) else None
    except OverflowError:  # a whole number that is larger than any float
        return None
