"""Defines what an importer makes of a file: cells, each a load and what came of it, perhaps with
its requests."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

import msgspec

from loadstone.core.machine_figures import DraftFigures
from loadstone.core.plan import Load, Phase
from loadstone.core.record import RequestRecord, Status, TokenSource
from loadstone.core.summary import Accuracy
from loadstone.core.verdict import Finding
from loadstone.interop.read.drafts import read_drafts, read_speculation
from loadstone.interop.read.findings import finding, list_some
from loadstone.interop.read.values import Value
from loadstone.workload.lengths import MAX_TOKENS

NO_TOKENS = "no output, though the tool counts it as completed"
NO_TIME = "impossible times in the file"
MAX_S = 1e9
MAX_MOMENT_S = 1e11
"""The latest moment: seconds since 1970 or since a machine's start; milliseconds are above it."""
_COMBINATION = re.compile(r"(?:SERVE|BENCH)--.*")
"""The folders of a sweep of vLLM's: all are of one machine, and often of one server."""
_PLACE = re.compile(r", (line|benchmark|experiment) \d+$")


@dataclass(kw_only=True)
class ResultRequest:
    """One request of a file. All but `start` and `due` count in seconds from its send.

    start           when it was sent, by the file's own clock; None: unknown
    due             when it should have been sent, by the same clock
    offsets_s       when its output arrived
    end_s           when it ended; None: with its output
    output_tokens   by the server, where it counts them
    counted_tokens  by the client, which counts the answer's text anew
    status          None: an error where there is one to tell of
    """

    start: float | None
    due: float | None = None
    offsets_s: Sequence[float] = ()
    end_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    counted_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    status: Status | None = None
    error: str | None = None
    phase: Phase = "measure"
    session_id: str | None = None
    turn: int | None = None


@dataclass(kw_only=True)
class ResultCell:
    """One load of an imported file; what the file does not tell is None or absent.

    where        for findings: `september/results.jsonl, line 3`; in the one folder that was named,
                 from there
    tool         whose client measured it, with its version where the file tells
    load         None: the file does not state it
    url          of the server, where the file tells it
    identity     what the tool calls this one measurement, in all files that tell of it
    deployment   as RunInfo.settings.deployment, see analyse/run_facts.py
    workload     as Plan.workload; {} where nothing is stated
    label        what the user calls the setup
    requests     `sent`, `ok` (completed, as the tool counts), `error`, `short`, …
    latencies    metric to statistic to seconds, as stated: {"ttft_s": {"mean": 0.1, "p50": …}}
    totals       metrics.TOTALS, as stated
    under_way    mean number of requests under way, as stated
    records      the requests, where the file has them; the cell's numbers are then computed from
                 these
    relative     each record's times count from its own send: when it was sent is unknown
    unknown      metrics that the records cannot give, though they look as if
    graded       the accuracy of answers, as stated
    drafts       what speculative decoding came to, as stated
    definitions  the dialect (loadstone.analyse.other_tools) by whose formulas the numbers were made
    """

    where: str
    tool: str
    load: Load | None
    url: str | None = None
    identity: str | None = None
    endpoint: str | None = None
    created: str | None = None
    deployment: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    prefix_cache: bool | None = None
    label: str | None = None
    requests: dict[str, int | None] = field(default_factory=dict)
    duration_s: float | None = None
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    totals: dict[str, float | int | None] = field(default_factory=dict)
    under_way: float | None = None
    records: list[RequestRecord] = field(default_factory=list)
    relative: bool = False
    unknown: tuple[str, ...] = ()
    definitions: str | None = None
    graded: Accuracy | None = None
    drafts: DraftFigures | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def file(self) -> str:
        return _PLACE.sub("", self.where)

    @property
    def server(self) -> str:
        """The same for cells that one server answered: its URL, else the folder that results were
        put in."""
        return self.url or _COMBINATION.sub("", str(PurePath(self.file).parent))

    @property
    def content(self) -> str:
        """A digest of all but where it was found and what it is called, the same of a copy."""
        return hashlib.sha256(
            msgspec.json.encode(replace(self, where="", label=None, findings=[]))
        ).hexdigest()

    @property
    def completed(self) -> int | None:
        return self.requests.get("ok")

    @property
    def is_open(self) -> bool:
        """True if it is an open loop, in which a request is due whatever the others do."""
        return self.load is not None and self.load.is_open

    @property
    def mean_under_way(self) -> float | None:
        """Requests under way in the mean by Little's law: Σ E2E/duration."""
        mean_s, done = self.mean("e2e_s"), self.completed
        return mean_s * done / self.duration_s if mean_s and done and self.duration_s else None

    @property
    def tokens(self) -> tuple[float | None, float | None]:
        """Input and output tokens in all."""
        return self.totals.get("input_tokens"), self.totals.get("output_tokens")

    @property
    def mean_lengths(self) -> tuple[float | None, float | None]:
        """Input and output tokens per request."""
        done = self.completed
        inputs, outputs = (
            tokens / done if tokens is not None and done else None for tokens in self.tokens
        )
        return inputs, outputs

    @property
    def counts(self) -> dict[str, float | None]:
        """The count behind each rate of `totals`, over the cell's duration."""
        inputs, outputs = self.tokens
        both = inputs + outputs if inputs is not None and outputs is not None else None
        return {
            "output_tokens_per_s": outputs,
            "total_tokens_per_s": both,
            "requests_per_s": self.completed,
        }

    def add_rates(self, *names: str) -> None:
        """Compute those of these rates that the file does not state."""
        for name in names:
            count = self.counts[name]
            if count is not None and self.duration_s and self.totals.get(name) is None:
                self.totals[name] = count / self.duration_s

    def sends_per_s(self, records: Sequence[RequestRecord]) -> float | None:
        """Compute (sends − 1)/(last − first send); None where the cell's requests have no common
        clock."""
        sent = sorted(record.sent_s for record in records if record.sent_s is not None)
        if self.relative or len(sent) < 2 or sent[-1] <= sent[0]:
            return None
        return (len(sent) - 1) / (sent[-1] - sent[0])

    def mean(self, latency: str) -> float | None:
        return self.latencies.get(latency, {}).get("mean")

    def say(
        self, kind: str, evidence: str, severity: str | None = None, remedy: str | None = None
    ) -> None:
        """Add a finding of this kind, see findings.py."""
        self.findings.append(finding(kind, f"{self.where}: {evidence}", severity, remedy))

    def add_drafts(self, document: Value) -> None:
        """Read what speculative decoding came to; that it was used belongs to the setup."""
        self.drafts = read_drafts(document)
        setting = read_speculation(document, self.drafts)
        if setting:
            self.deployment["arguments"] = self.deployment.get("arguments", {}) | setting

    def say_odd(self, odd: Mapping[str, str]) -> None:
        """Add a finding about numbers of the file that were left out, see Value."""
        if odd:
            numbers = list_some([f"{name} is {value}" for name, value in odd.items()])
            negative = all(value.startswith("-") for value in odd.values())
            limit = "below 0" if negative else "so"
            self.say("impossible_number", f"{numbers}, and cannot be {limit}; left out")

    def say_recounted(self, recounted: int, of: int | None, remedy: str | None = None) -> None:
        """Add a finding about a client that counts the answers' text anew beside the server's own
        count."""
        if recounted:
            evidence = (
                f"for {recounted} of {of} requests the server's count of output tokens is not the"
                " client's"
            )
            self.say("counts_differ", f"{evidence}, which counts the text anew", remedy=remedy)

    def add_requests(
        self, requests: Sequence[ResultRequest], *, per_s: float = 1.0, origin: float | None = None
    ) -> None:
        """Add their records, from `origin` on (None: the first send, or when the first was due), in
        1/`per_s` seconds.

        Where the send of one is unknown, none has a moment. Turns are those of conversations: of
        single requests there are none.
        """
        starts = [request.start for request in requests]
        self.relative = None in starts
        moments = [*starts, *(request.due for request in requests)] if origin is None else [origin]
        zero = min((moment for moment in moments if moment is not None), default=0)

        def seconds(moment: float | None) -> float | None:
            return None if self.relative or moment is None else (moment - zero) / per_s

        if not self.relative and zero / per_s > MAX_MOMENT_S:
            self.say("clock_doubted", f"its requests begin at {zero / per_s:.3g} s, at no date")
        several = any(request.turn for request in requests)
        recounted = too_long = 0
        for request in requests:
            counts = request.output_tokens, request.counted_tokens
            recounted += None not in counts and counts[0] != counts[1]
            too_long += max(request.input_tokens or 0, counts[0] or counts[1] or 0) > MAX_TOKENS
            record = _make_record(request, seconds(request.start), seconds(request.due))
            if several:
                record.session_id, record.turn = request.session_id, request.turn
            self.records.append(record)
        self.say_recounted(recounted, len(requests))
        if too_long:
            evidence = (
                f"{too_long} of {len(requests)} requests state more than {MAX_TOKENS:,} tokens;"
                " left out"
            )
            self.say("impossible_number", evidence)


def _make_record(
    request: ResultRequest, sent_s: float | None, intended_s: float | None
) -> RequestRecord:
    """Make a record. `sent_s` None: that moment is time 0. A request without any output is an
    error, whatever the tool says of it.

    Its id and its cell it gets when it is written.
    """
    begin_s = sent_s or 0.0
    times_s = (begin_s, *request.offsets_s, request.end_s or 0.0)
    if not all(0 <= time_s <= MAX_S for time_s in times_s):
        begin_s = 0.0
        request = replace(request, offsets_s=(), end_s=None, status="error", error=NO_TIME)
    offsets_s, error = request.offsets_s, request.error
    status: Status = request.status or ("error" if error else "ok")
    output_tokens = _limit_tokens(
        request.output_tokens if request.output_tokens is not None else request.counted_tokens
    )
    if status == "ok" and (not offsets_s or output_tokens == 0):
        status, error = "error", error or NO_TOKENS
    last_s = request.end_s
    if last_s is None and offsets_s:
        last_s = offsets_s[-1]
    token_source: TokenSource | None = None
    if offsets_s:
        token_source = "final usage" if output_tokens else "pieces"
    return RequestRecord(
        request_id="",
        cell=0,
        phase=request.phase,
        intended_s=intended_s,
        sent_s=begin_s,
        arrival_s=[begin_s + offset_s for offset_s in offsets_s],
        read=list(range(len(offsets_s))),
        token_source=token_source,
        end_s=None if last_s is None else begin_s + last_s,
        input_tokens=_limit_tokens(request.input_tokens),
        output_tokens=output_tokens,
        cached_tokens=request.cached_tokens,
        reasoning_tokens=request.reasoning_tokens,
        status=status,
        error=error,
    )


def _limit_tokens(tokens: int | None) -> int | None:
    """Leave out a count that no model can have."""
    return None if tokens is not None and tokens > MAX_TOKENS else tokens


def offset_from(start: float, moment: float | None) -> float | None:
    """Return `moment` as an offset from `start`; None where it is not told or before."""
    return moment - start if moment is not None and moment >= start else None


def read_failure(error: Value, key: str) -> str | None:
    """Read a request's `error`, itself or under `key`; None where there is none."""
    return (error.text(f"{key}|") or "an error without a message") if error else None
