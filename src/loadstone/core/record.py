"""Defines what happened (RequestRecord), and under which circumstances (Target, RunInfo).

A record's times count from the run's origin on one monotonic clock.
"""

from collections import Counter
from typing import Any, Literal, NamedTuple

import msgspec

from loadstone.core.host import Host
from loadstone.core.plan import Load, Phase
from loadstone.core.settings import RunSettings

TokenSource = Literal["running usage", "final usage", "pieces"]
Status = Literal["ok", "error", "timeout", "cancelled", "short"]
Clock = Literal["kernel", "user", "packets"]
Source = Literal["measured", "simulated", "imported"]
RunStatus = Literal["running", "done", "interrupted", "failed"]


THINKING, ANSWER, TOOL_CALL = 1, 2, 3
"""Channels of output: what of an answer an event is of. 0: it tells none, as a token without text.
"""

CUT_REASONS = ("length", "max_tokens", "max_output_tokens")
"""Finish reasons, in the words of each API, of answers that ended at the limit of their tokens."""

STOP_REASONS = ("stop", "end_turn", "stop_sequence", "completed")
"""Those of answers that the model ended itself."""

MESSAGE_APIS = ("chat", "messages", "responses")
"""APIs that take conversations and tools, and put prompts into the model's template."""

StopRule = Literal["precise", "imprecise", "errors", "time"]


class WatchedRequest(NamedTuple):
    """The latencies of a measured request that ended well, told while the run goes on; seconds,
    times from the run's origin. `tpot_s`: None of a single token."""

    sent_s: float
    end_s: float
    ttft_s: float
    tpot_s: float | None
    e2e_s: float


class Stop(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says why a cell ended before all of it was sent: the precision that was asked for is reached,
    too many errors, its longest time. imprecise: it ended before that precision was reached.
    `holds`: all bounds that were to be decided hold; None: there were none, or it is not known."""

    rule: StopRule
    evidence: str
    holds: bool | None = None


class RequestRecord(msgspec.Struct, kw_only=True):
    """The facts of one request, as measured, simulated or imported.

    arrival_s[i]  when event i, the i-th stream event that carried output, arrived
    read[i]       index of the socket read that brought event i: events of one read share a stamp,
                  and its true arrival lies between the previous read and the stamp
    tokens[i]     cumulative output tokens after event i, from `token_source`: the server's running
                  count, its final count spread evenly over the events, or one per event (pieces)
    status        ok: ended with a finish reason or [DONE], no error object, at least one token;
                  short: ok, but fewer tokens than were demanded, where an exact length was demanded
    session_id    of a conversation: the request_id of its first turn; `turn` counts from 0
    replica       which of the target's URLs, from 0
    receive_lag_s the worst, over the request's reads, of user-space read time minus kernel arrival
    time
    server_*_s    prefill and decode time as the engine itself states them in the stream (llama.cpp
                  does)
    channel[i]    THINKING, ANSWER or TOOL_CALL: the last channel that event i is of; None: not
                  known
    draft_*       as the engine states it of this request's speculative decoding: steps that
                  verified drafts, tokens drafted, of these accepted; accepted_histogram[j]: steps
                  that accepted exactly j
    images        pictures in the prompt, and `pixels` of all of them; their files' bytes, and those
                  of the whole body
    visual_tokens_planned  that the pictures become by the rule of the model or engine;
                  visual_tokens: as the server says
    sent_end_s    when the kernel had taken the request's last byte
    """

    request_id: str
    cell: int
    phase: Phase
    session_id: str | None = None
    turn: int | None = None
    intended_s: float | None = None
    sent_s: float | None = None
    arrival_s: list[float] = []
    read: list[int] = []
    tokens: list[int] = []
    token_source: TokenSource | None = None
    end_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    status: Status
    error: str | None = None
    http_status: int | None = None
    worker: int | None = None
    replica: int | None = None
    reused_connection: bool | None = None
    receive_lag_s: float | None = None
    server_prefill_s: float | None = None
    server_decode_s: float | None = None
    channel: list[int] | None = None
    draft_steps: int | None = None
    draft_tokens: int | None = None
    draft_accepted: int | None = None
    accepted_histogram: list[int] | None = None
    images: int | None = None
    pixels: int | None = None
    picture_bytes: int | None = None
    body_bytes: int | None = None
    visual_tokens_planned: int | None = None
    visual_tokens: int | None = None
    sent_end_s: float | None = None


class Target(msgspec.Struct, kw_only=True):
    """The server under test, as it described itself before the run."""

    url: str
    urls: list[str] = []
    """All servers of a fleet, `url` first; a record's `replica` counts in it."""
    endpoint: str
    streams: bool = True
    """False: answers come in one piece, and have no TTFT."""
    model: str
    engine: str | None = None
    engine_version: str | None = None
    engines: list[str | None] = []
    """The engine of each of `urls`, in a fleet of several engines; else empty."""
    prompt_kind: Literal["token ids", "text"]
    choices: int = 1
    """Answers that each request has side by side, as by `n`."""
    overhead_tokens: int = 0
    """Tokens that the server adds to every prompt: a chat template, a BOS; to every text of which a
    vector is asked for, and to a query with its document."""
    pairs: bool | None = None
    """Whether its counts have a query again for each document; None: it was not asked, or counts
    nothing."""
    dimensions: int | None = None
    """Numbers of a vector that each request asks for."""
    max_model_tokens: int | None = None
    models: Any = None
    """The body of /v1/models."""
    version: Any = None
    """The body of /version, where offered."""
    metrics_names: list[str] = []
    """Names that /metrics offers."""
    accepts: dict[str, bool] = {}
    """Request fields tried on the server, and whether it took them."""


class ProfiledWindow(msgspec.Struct, frozen=True):
    """Says when the engines' profilers ran after a cell, under its load: seconds from the run's
    origin. `stopped`: they said that they stopped. What was sent then is in no figure."""

    start_s: float
    end_s: float
    stopped: bool = True


class VectorFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says what came of vectors or scores, warm-up included: answers with any; those in which one
    is no finite number, or all zeros; those in which different texts have the same, or that have
    the first vector of another; and vectors by how many numbers they have."""

    answers: int = 0
    faulty: int = 0
    alike: int = 0
    lengths: dict[str, int] = {}

    def __add__(self, other: "VectorFacts") -> "VectorFacts":
        return VectorFacts(
            self.answers + other.answers,
            self.faulty + other.faulty,
            self.alike + other.alike,
            dict(Counter(self.lengths) + Counter(other.lengths)),
        )


class CellInfo(msgspec.Struct, kw_only=True):
    """Says when a cell ran, seconds from the run's origin; None while it has not."""

    load: Load
    start_s: float | None = None
    issue_end_s: float | None = None
    """The time when the last planned request was taken up: from here on the load falls."""
    end_s: float | None = None
    client_cpu_s: float | None = None
    """Processor seconds the client's workers took."""
    clocks_apart_s: float | None = None
    """The most by which clocks of the client's machines may have been apart; None: it was one
    machine."""
    requests_resent: int | None = None
    """Sent a second time, warm-up included: the server had cut the kept connection before it
    answered."""
    packets_missed: int = 0
    """Reads of several events of which a packet was not seen, where packets are the clock."""
    packets_lost: int = 0
    """Packets for which the ring had no room."""
    pictures_late: int = 0
    """Requests, warm-up included, whose pictures were not made when they were due."""
    models: dict[str, int] | None = None
    """Answers by the model that they name, warm-up included; those that name none are not counted.
    """
    adapter_loads: int | None = None
    """Of LoRA adapters to the GPU; None: not known. `adapter_slots`: that there are for them."""
    adapter_slots: int | None = None
    misnamed: dict[str, int] = {}
    """Answers that name another model than their class asked for, by class; warm-up included."""
    prompts_compared: int | None = None
    """Different requests, of the first that were measured, whose answers were compared by their
    text."""
    texts_compared: int | None = None
    """Different texts among these answers."""
    text_sizes: list[tuple[int, int, int, int]] = []
    """Of some of these answers, that are text alone: tokens, events, characters, and the sum of the
    squares of the events' characters."""
    openings: int = 0
    """Answers whose first event's text was compared; `openings_alike`: of these those with the most
    common one, `openings_blank`: with white space alone."""
    openings_alike: int = 0
    openings_blank: int = 0
    void_firsts: int = 0
    """Answers whose first event was no token, and is left out of the records."""
    unlisted: dict[str, int] = {}
    """Answers with output in fields of these names, which the dialect does not know."""
    hidden_tokens: int = 0
    """Output tokens that the server counts and did not send, which `output_tokens` of the records
    leave out; below 0: those that it sent and counts beside its output, which they include."""
    vectors: VectorFacts | None = None
    stopped: Stop | None = None
    """The rule by which it ended, where one was set."""
    profiled: ProfiledWindow | None = None
    profiler: str | None = None
    """What tells that the engine's profiler may have run while it was measured."""


class JournalDamage(msgspec.Struct, kw_only=True):
    """Says what part of a worker's journal could not be read, and which cells it may have been
    of."""

    file: str
    at: int
    """The first byte of it."""
    bytes: int = 0
    batches: int = 0
    """At least so many; a worker appends two a second."""
    first_cell: int
    last_cell: int | None = None
    """None: the last of the run."""


class RunInfo(msgspec.Struct, kw_only=True):
    """Everything needed to repeat a run; `run.json` holds it from the first moment on."""

    schema: int = 1
    run_id: str
    source: Source
    status: RunStatus = "running"
    created: str
    """Wall-clock start, ISO 8601 UTC."""
    command: list[str]
    loadstone: str
    host: Host
    target: Target | None = None
    plan_id: str
    seed: int
    salt: str | None
    """Makes this run's prompts differ from every other run's; with the plan it gives them back."""
    slo: dict[str, float] = {}
    settings: RunSettings = msgspec.field(default_factory=RunSettings)
    cells: list[CellInfo] = []
    clock: Clock | None = None
    origin_ns: int | None = None
    """CLOCK_MONOTONIC of the host at the records' time 0."""
    origin_unix_ns: int | None = None
    """Wall time then, since 1970."""
    selftest: Any = None
    """The result of this host's self-test when the run was made; see client_accuracy.Selftest."""
    error: str | None = None
    journals_damaged: list[JournalDamage] = []
    """The parts that run_folder.assemble() could not read. These journals stay beside the records.
    """

    marks: dict[str, str] = {}
    """Digests of the files as they were written, and of this one, by which changes show."""

    @property
    def streams(self) -> bool:
        """False: answers came in one piece, and have no TTFT."""
        return self.target is None or self.target.streams
