"""The document of `loadstone recommend --json`, typed: what loadstone.recommend() returns."""

from typing import Literal

import msgspec

from loadstone.core.machine_figures import PredictedPower
from loadstone.recommend.judge.autoscaled import AutoscaledPlan
from loadstone.recommend.judge.by_hour import ByHour, Span
from loadstone.recommend.judge.host_memory import HostMemory
from loadstone.recommend.judge.split import Split

SCHEMA = 1


class LatencySpan(msgspec.Struct, frozen=True):
    """Predicted median and 99th percentile in seconds under the traffic; low and high: 80 % of the
    median."""

    p50: float
    p99: float
    low: float
    high: float


class BoundText(msgspec.Struct, frozen=True):
    """A bound of --slo: on a quantile of a latency, in seconds."""

    metric: str
    quantile: float
    bound_s: float


class TrafficText(msgspec.Struct, frozen=True):
    """kind: rate (requests/s) or concurrency (under way); lengths in tokens, means. texts: of
    a request for vectors or scores. sessions: calls
    of one, where the load counts them: those that begin a second, or are alive."""

    kind: str
    value: float
    input_tokens: float
    output_tokens: float
    texts: float = 0.0
    trace: str | None = None
    sessions: float | None = None

    @property
    def unit(self) -> str:
        names = (
            ("requests/s", "requests under way")
            if self.sessions is None
            else ("sessions/s", "sessions alive")
        )
        return names[self.kind != "rate"]


class OneFewer(msgspec.Struct, frozen=True):
    """The plan with a replica less, of many some: how likely that holds, and why it is not the
    plan."""

    replicas: int
    p_slo: float
    why: str


class DeploymentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """So many replicas of a deployment.

    p_slo           probability that all bounds hold under the traffic, over the errors of the model
    capacity_per_s  requests/s that all replicas carry within the bounds by the best prediction; of
                    a closed loop what their capacity in requests under way gives per second
    headroom        capacity over demand, less 1
    ttft_s, tpot_s  of answers in text; e2e_s: of vectors and scores
    usd_per_mtok    dollars per million output tokens, of vectors and scores input tokens; low and
                    high: with as many replicas as are needed where fewer or more hold (80 %); None
                    without prices
    binds           the bound that breaks first, and what a step mostly consists of
    helps           what would carry more per GPU, of all that was looked at
    why             which error makes p_slo what it is
    usd_per_month_one_down     with a replica more, so that one may be down
    usd_per_month_whole_nodes  where GPUs are rented by the node; None where that is the same
    checked         of a trace: how much of it was simulated for these figures
    source          measured: a run of this deployment moved the prediction
    route           of the router before several replicas: least-busy, prefix, hashed, round-robin
    one_fewer       where that was tried
    launch          commands, one a rank, of one replica, and of the router before several; `files`:
                    what must lie beside them, by name
    warnings        what is to be known before it is started
    further         what narrower numbers than anybody publishes would save
    output_tokens_per_s  of all replicas under the traffic
    by_hour         of a trace of several windows: as many replicas as each needs
    sessions_per_gpu  of sessions: how many are alive per GPU where all replicas carry what they can
    power           what all boards draw under the traffic
    task_s          of sessions: the time of one; cached_share: what of their prompts is cached;
                    under the load
    """

    deployment: str
    replicas: int
    gpus: int
    p_slo: float
    capacity_per_s: float
    headroom: float
    usd_per_mtok: Span | None
    usd_per_month: Span | None
    binds: str
    helps: str
    regret: float
    source: Literal["simulated", "measured"]
    launch: list[str]
    ttft_s: LatencySpan | None = None
    tpot_s: LatencySpan | None = None
    e2e_s: LatencySpan | None = None
    route: str | None = None
    one_fewer: OneFewer | None = None
    by_hour: ByHour | None = None
    files: dict[str, str] = {}
    warnings: list[str] = []
    further: str | None = None
    why: str = ""
    usd_per_month_one_down: float | None = None
    usd_per_month_whole_nodes: float | None = None
    checked: str | None = None
    output_tokens_per_s: float = 0.0
    sessions_per_gpu: float | None = None
    task_s: LatencySpan | None = None
    cached_share: float | None = None
    power: PredictedPower | None = None

    @property
    def latencies(self) -> dict[str, LatencySpan]:
        """Return what it has of E2E, TTFT and TPOT, by name."""
        named = {"TTFT": self.ttft_s, "TPOT": self.tpot_s, "E2E": self.e2e_s}
        return {name: span for name, span in named.items() if span is not None}


class GpuChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The best plan of a kind of GPU that was named; `deployment` is None where none carries the
    traffic.

    more_usd_per_month, more_p_slo  beside the first plan; without prices dollars are None
    """

    gpu: str
    deployment: str | None
    replicas: int = 0
    gpus: int = 0
    p_slo: float = 0.0
    usd_per_month: float | None = None
    more_usd_per_month: float | None = None
    more_p_slo: float = 0.0
    why: str = ""


class Rejected(msgspec.Struct, frozen=True):
    """`count` deployments like this one that are not advised, and why."""

    deployment: str
    why: str
    count: int = 1


class MeasureNext(msgspec.Struct, frozen=True):
    """The measurement that is worth most. Regrets in dollars per month; without prices in GPUs, by
    throughput in output tokens/s."""

    command: str
    minutes: float
    regret_now: float
    regret_after: float
    deployment: str
    requests: float | None = None


class FinalistPoint(msgspec.Struct, frozen=True):
    """A simulated finalist, for charts: what a plan of it costs and carries. `front`: nothing is
    better in all."""

    deployment: str
    replicas: int
    gpus: int
    p_slo: float
    usd_per_month: float | None
    output_tokens_per_s_per_gpu: float
    output_tokens_per_s_per_user: float
    loads: list[float]
    worst: list[float]
    """By load of a replica, the largest of bounded latency / bound."""
    front: bool
    needed_low: float
    needed_high: float
    """Replicas that are needed in the 10th and 90th of a hundred draws, over those of the plan."""
    asked: bool = True
    """Whether p_slo is of the asked load, simulated as for a plan; else of loads nearby."""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the deployment to choose, how sure that is, what was passed over, and what to measure
    next; times in `seconds` are those of the steps that made it."""

    model: str
    traffic: TrafficText
    slo: list[BoundText]
    plans: list[DeploymentPlan]
    rejected: list[Rejected]
    measure_next: MeasureNext | None
    study: str | None
    notes: list[str]
    finalists: list[FinalistPoint]
    deployments_ranked: int
    seconds: dict[str, float]
    confidence: float = 0.8
    holds: bool = True
    """Whether the first plan holds with that probability."""
    objective: Literal["cost", "throughput"] = "cost"
    by_gpu: list[GpuChoice] = []
    split: Split | None = None
    """With --pools."""
    host_memory: HostMemory | None = None
    autoscaled: list[AutoscaledPlan] = []
    """Where the traffic is sessions."""
    schema: int = SCHEMA
