"""Defines the messages between the run's owner and its workers: one JSON object a line, over the
workers' pipes.

owner → worker (stdin)    Job once, then Step after Step, EndStep or StopRun to end early; Leave or
                          the pipe's end: save and exit
worker → owner (stdout)   Ready once, Progress (and EndedRequests) four times a second, StepDone per
                          step, Failed if it cannot go on
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from loadstone.core.record import VectorFacts, WatchedRequest
from loadstone.workload.prompts import Vocabulary
from loadstone.workload.request import Route, Timeouts


class Address(NamedTuple):
    """Says where to connect, resolved by the owner.

    tls_name   the server's name for TLS; None: plain HTTP
    tunnel     host:port that the proxy at this address is asked for; None: no proxy, or one that
               forwards plain HTTP
    """

    family: int
    sockaddr: tuple[Any, ...]
    tls_name: str | None
    tunnel: str | None = None


class Destination(msgspec.Struct, kw_only=True):
    """One server of a fleet."""

    address: Address
    request_line: str
    headers: list[tuple[str, str]]
    secrets: list[str] = []
    """Texts that are not to be written down, wherever they turn up."""


class ClassWire(msgspec.Struct, kw_only=True):
    """Holds the body of the requests of a class of traffic, and headers in place of those of the
    same name; `adapters`: bodies of those that ask for one, by its number in the plan."""

    body: dict[str, Any]
    headers: list[tuple[str, str]] = []
    adapters: dict[int, dict[str, Any]] = {}

    def body_of(self, adapter: int) -> dict[str, Any]:
        return self.adapters.get(adapter, self.body)


class Job(msgspec.Struct, kw_only=True, tag="job"):
    """All a worker needs to know; travels through a pipe, never through a file, for it may hold
    secrets."""

    folder: str
    worker: int
    origin_ns: int
    destinations: list[Destination]
    route: Route
    endpoint: str
    streams: bool
    body: dict[str, Any]
    """Every request's body, with marks for prompt and length; see wire.request."""
    graded_body: dict[str, Any] = {}
    """That of requests whose answers are graded: they end by themselves."""
    classes: list[ClassWire] = []
    """Of each class of traffic; none: all requests have `body`."""
    stored: bool = False
    """Later turns of a session name the server's stored answer, and say what is new."""
    vocabulary: Vocabulary
    salt: str | None
    request_tag: str
    """Begins every X-Request-Id of the run."""
    traced_as: str | None = None
    """The run's id, by which a `traceparent` goes with every request; None: none does."""
    timeouts: Timeouts
    grace_s: float
    held_limit_bytes: int
    watched: bool = False
    """Tell of each measured request that ended."""
    packets: bool = False
    """Arrivals are timed by packets."""
    ray: str | None = None
    """Address of the Ray cluster on whose machines the worker runs; None: here."""


class Step(msgspec.Struct, kw_only=True, tag="step"):
    """Requests `first` … `last` − 1 of a cell (`last` None: endless), of which this worker sends
    every `parts`-th."""

    cell: int
    first: int
    last: int | None
    part: int
    parts: int
    start_ns: int


class StopRun(msgspec.Struct, tag="stop"):
    """End now: what is under way becomes cancelled."""

    reason: str


class EndStep(msgspec.Struct, tag="end"):
    """Send nothing more of the step; what is under way has the grace period to end."""


class Leave(msgspec.Struct, tag="leave"):
    """Save and exit. Said besides closing the pipe, which a process forked off the owner may hold
    open."""


class Ready(msgspec.Struct, tag="ready"):
    kernel_clock: bool
    clock_offset_ns: int = 0
    """CLOCK_MONOTONIC of the worker's machine − that of its owner's."""
    clock_within_ns: int = 0
    """The most by which that may be wrong."""


class Progress(msgspec.Struct, tag="progress"):
    issued: int
    ended: int
    failed: int
    active: int
    tokens: int
    """Output events seen so far: live figures only, the records count tokens."""
    ttfts: int = 0
    """Measured requests that ended well; `ttft_s`: the sum of their TTFTs, of vectors or
    scores E2Es."""
    ttft_s: float = 0.0
    tpots: int = 0
    """Those of them with several tokens; `tpot_s`: the sum of their TPOTs."""
    tpot_s: float = 0.0
    last_error: str | None = None

    def __add__(self, other: Progress) -> Progress:
        """Add the progress of two workers."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Progress(**sums, last_error=other.last_error or self.last_error)

    def __sub__(self, before: Progress) -> Progress:
        """Subtract what came up to `before`; `active` is as it is now."""
        differences = {name: getattr(self, name) - getattr(before, name) for name in _COUNTS}
        return Progress(**(differences | {"active": self.active}), last_error=self.last_error)


_COUNTS = Progress.__struct_fields__[:-1]
NOTHING_YET = Progress(0, 0, 0, 0, 0)


class StepDone(msgspec.Struct, tag="done"):
    """Tells what came of a step, of one worker or of all together. Monotonic ns: when the step was
    to start, the last request was taken up, and the last one ended.
    """

    start_ns: int
    issue_end_ns: int
    end_ns: int
    cpu_s: float = 0.0
    """Processor time that the workers took for the step, user and system."""
    resent: int = 0
    """Requests sent again, after the server had cut the kept connection that they were on."""
    packets_missed: int = 0
    packets_lost: int = 0
    pictures_late: int = 0
    """These three of CellInfo."""
    models: dict[str, int] = {}
    """Answers by the model that they name."""
    misnamed: dict[str, int] = {}
    """Those that name another than their class asked for, by class."""
    unlisted: dict[str, int] = {}
    """Answers by the unknown fields in which they had output."""
    hidden_tokens: int = 0
    """Output tokens that the server counts and did not send; below 0: that it sent and counts
    beside them."""
    openings: dict[str, int] = {}
    """Answers by a digest of what their first event says; "": white space."""
    texts: dict[str, str] = {}
    """The first answers: digest of the request to that of the text."""
    text_sizes: list[tuple[int, int, int, int]] = []
    """Of these, see CellInfo."""
    vectors: VectorFacts = VectorFacts()

    clocks_apart_ns: int = 0
    """The most by which a worker's clock may be off its owner's so far, its drift included; 0: it
    is the same."""

    def add(self, other: StepDone) -> None:
        self.issue_end_ns = max(self.issue_end_ns, other.issue_end_ns)
        self.end_ns = max(self.end_ns, other.end_ns)
        self.cpu_s += other.cpu_s
        self.resent += other.resent
        self.packets_missed += other.packets_missed
        self.packets_lost += other.packets_lost
        self.pictures_late += other.pictures_late
        self.clocks_apart_ns = max(self.clocks_apart_ns, other.clocks_apart_ns)
        self.hidden_tokens += other.hidden_tokens
        self.models = dict(Counter(self.models) + Counter(other.models))
        self.misnamed = dict(Counter(self.misnamed) + Counter(other.misnamed))
        self.unlisted = dict(Counter(self.unlisted) + Counter(other.unlisted))
        self.openings = dict(Counter(self.openings) + Counter(other.openings))
        self.texts.update(other.texts)
        self.text_sizes = self.text_sizes + other.text_sizes
        self.vectors += other.vectors


class EndedRequests(msgspec.Struct, tag="ended"):
    """Measured requests that ended well, where the job says `watched`."""

    requests: list[WatchedRequest]


class GradedText(msgspec.Struct, kw_only=True, frozen=True):
    """The answer to a question, to be graded by the owner: nothing of it is written to a file on
    the way.

    ended     it came to its end, and is no error; `cut`: at the limit of its tokens
    thought   reasoning came apart from the text
    calls     of tools, each with its `name` and `arguments`
    """

    request_id: str
    ended: bool
    cut: bool = False
    tokens: int = 0
    text: str = ""
    thought: bool = False
    calls: list[dict[str, str]] = []


class EndedAnswers(msgspec.Struct, tag="answers"):
    """Answers to questions that ended, of whatever phase of the step."""

    answers: list[GradedText]


class Failed(msgspec.Struct, tag="failed"):
    message: str
    disk_full: bool = False


ToWorker = Job | Step | StopRun | EndStep | Leave
FromWorker = Ready | Progress | EndedRequests | EndedAnswers | StepDone | Failed
_Message = TypeVar("_Message")


class MessageReader(Generic[_Message]):
    """Reads messages from a pipe, of the kind that `decode` makes of a line."""

    def __init__(self, pipe: int, decode: Callable[[bytes], _Message]) -> None:
        self._pipe = pipe
        self._decode = decode
        self._rest = b""

    def read(self) -> list[_Message] | None:
        """Return the messages of one read, none if it was less than a line; None at the pipe's
        end."""
        data = os.read(self._pipe, 1 << 20)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._decode(line) for line in lines]

    def first(self) -> _Message | None:
        """Wait for the first message; None at the pipe's end."""
        messages = self.read()
        while messages == []:
            messages = self.read()
        return messages[0] if messages else None


decode_order: Callable[[bytes], ToWorker] = msgspec.json.Decoder(ToWorker).decode
decode_report: Callable[[bytes], FromWorker] = msgspec.json.Decoder(FromWorker).decode


def report(message: FromWorker, out: int = 1) -> None:
    """Tell the owner, if it still listens: the end of stdin says so too where it does not."""
    with contextlib.suppress(OSError):
        os.write(out, msgspec.json.encode(message) + b"\n")
