"""The numbers of a run, typed: what `loadstone bench --json` prints and `summary.json` keeps.

    summary = read(folder)                        of a run folder's summary.json
    summary = Summary.of(document)                of a document that is already decoded
    document = summary.document()                 what is printed: dicts, lists, numbers, text

A field with `= null()` is printed as null where it is not known; one with `= None` is left out of
the document then. Times are seconds from the run's origin, latencies seconds, rates per second;
shares lie between 0 and 1. docs/metrics.md defines the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from loadstone.core.bounds import SLO_KEYS, SloBound, joint_probability
from loadstone.core.document import Document, DocumentPart, null
from loadstone.core.errors import InputError
from loadstone.core.files import read_json
from loadstone.core.machine_figures import (
    DraftFigures,
    GpuFigures,
    PoolFigures,
    PredictedPower,
    ServerFigures,
)
from loadstone.core.metrics import LATENCIES, Metrics, Requests, Steady, Window
from loadstone.core.parts import (
    ClassPart,
    Part,
    PiecePart,
    ReplicaPart,
    SessionNumbers,
    SizePart,
    TurnPart,
)
from loadstone.core.plan import Load
from loadstone.core.record import Clock, RunStatus, Source, Stop, Target
from loadstone.core.settings import FirstToken, FleetFigures, FoundMax
from loadstone.core.verdict import QUEUE_GROWS, Finding, Verdict

SCHEMA = 1
_MAX_BYTES = 256 * 1024 * 1024
"""The largest summary.json that is read."""


class Client(DocumentPart, kw_only=True, frozen=True):
    """The client: 99th percentiles of its lags, whose clock stamped arrivals, processor seconds
    that its workers took, and what the host's self-test says of it, in a line.
    """

    send_lag_p99_s: float | None = null()
    receive_lag_p99_s: float | None = null()
    clock: Clock = msgspec.field(default_factory=lambda: "user")
    cpu_s: float | None = null()
    selftest: str | None = None


class Roofline(DocumentPart, kw_only=True, frozen=True):
    """Shares of what the hardware allows: 1 is as fast as it can be. What cannot be told is None.

    tpot_s      the least time of a step with as many requests decoding as there were
    ttft_s      the least time of one prompt, alone
    tpot_ratio  tpot_s / the median TPOT
    ttft_ratio  ttft_s / the median TTFT from sending
    mbu         bytes that the decode steps read, per second, over the memory bandwidth of all GPUs
    mfu         FLOPs of all tokens that were computed, per second, over the peak of all GPUs
    """

    tpot_s: float | None = null()
    ttft_s: float | None = null()
    tpot_ratio: float | None = null()
    ttft_ratio: float | None = null()
    mbu: float | None = null()
    mfu: float | None = null()


class ToolNumbers(DocumentPart, kw_only=True, frozen=True):
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
    strict: float | None = null()
    share: float | None = null()
    failed: int | None = null()
    cut: int | None = null()
    thinking: int | None = null()
    unparsed: int | None = null()
    crossed: int | None = null()
    temperature: float | None = null()
    undecided: str | None = null()
    tasks: list[TaskAccuracy] = []
    part: Part | None = None


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
    duration_s: float | None = null()
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
    roofline: Roofline | None = null("light")

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
        return self.p_slo if self.p_slo is not None else joint_probability(self.slo)


class PerGpu(DocumentPart, kw_only=True, frozen=True):
    """Agents per GPU at the highest load that keeps the bounds. `low`, `high`: those at which they
    surely hold, and surely fail; `per_mw`: over the power that was read, of what `boundary` says.
    """

    value: float
    low: float
    high: float | None = None
    per_mw: float | None = None
    boundary: str | None = None


class ScenarioResult(DocumentPart, kw_only=True, frozen=True):
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
    target: Target | None = null()
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
