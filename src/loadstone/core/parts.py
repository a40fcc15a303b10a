"""Holds the numbers of some of a cell's requests: a turn's, a server's, a class's, a size's."""

from __future__ import annotations

import msgspec

from loadstone.core.document import DocumentPart, null
from loadstone.core.metrics import Latency, Requests


class Part(DocumentPart, kw_only=True, frozen=True):
    """The numbers of some of a cell's requests: one turn's, one server's. Fields as in Metrics.

    mean_input_tokens, mean_output_tokens  of those that are ok or short; None where there are none,
                                           or not told
    token_share                            of the cell's output tokens
    """

    requests: Requests
    ttft_s: Latency | None = null()
    tpot_s: Latency | None = null()
    e2e_s: Latency | None = null()
    ttft_intended_s: Latency | None = null()
    e2e_intended_s: Latency | None = null()
    input_tokens: int | None = null()
    cached_input_tokens: int | None = null()
    output_tokens: int
    mean_input_tokens: float | None = null()
    mean_output_tokens: float | None = null()
    token_share: float | None = null()


class TurnPart(Part, kw_only=True, frozen=True):
    """One turn of all sessions, counted from 0.

    shared_input_tokens  that the plan's sessions share with earlier calls: the most a cache could
                         give; null where the plan does not say
    """

    turn: int
    shared_input_tokens: int | None = None


class SessionNumbers(DocumentPart, kw_only=True, frozen=True):
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
    task_s: Latency | None = null()
    model_s: float | None = null()
    tool_s: float | None = null()
    waiting_share: float | None = null()
    per_hour: float | None = null()
    calls: float | None = null()


class ReplicaPart(Part, kw_only=True, frozen=True):
    """One server of a fleet, by its place in the target's URLs."""

    replica: int
    url: str | None = null()


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
    share: float | None = null()
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
    requests_per_s: float | None = null()
    output_tokens_per_s: float | None = null()


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
    images_per_s: float | None = null()
    visual_tokens: float | None = None
    visual_tokens_planned: float | None = None
    upload_share: float | None = None
    body_bytes: float | None = None
