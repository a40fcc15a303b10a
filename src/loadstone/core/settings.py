"""How a run was set up, beyond its plan and its target: `settings` in run.json.

A key is there where it applies: what only measured, simulated or imported runs have is absent from
the others. Keys of later versions are passed over, and a value that cannot be read is left out, so
that a run of any version opens.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from loadstone.core.electricity import Electricity
from loadstone.core.provenance import Provenance

_Factors = Annotated[Sequence[Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=1)]


class WorkerClock(msgspec.Struct, frozen=True):
    """The clock of a worker on another machine: seconds ahead of ours, known to within so many."""

    worker: int
    offset_s: float
    within_s: float


class FirstToken(msgspec.Struct, frozen=True):
    """The predicted TTFT of an idle engine for a prompt of so many tokens: its parts in seconds, by
    their names."""

    prompt_tokens: int
    parts_s: dict[str, float]


class PredictionBasis(msgspec.Struct, kw_only=True):
    """The measurements and assumptions that a prediction rests on.

    unmeasured           what of the deployment no measurement is behind, in words
    vendor_unmeasured    no measurement on GPUs of this vendor; `engine_unmeasured`: with this
                         engine
    uncovered            classes of deployments and loads without measurements whose intervals are
                         wider for it
    moves_in_waves       a closed loop whose requests are all of one length
    nodes_crossed        nodes that one replica spans; `own_profile`: the profile is the user's
    assumed              where the model's config.json is silent
    priorities_unused    classes of traffic have priorities that the simulated engine does not read
    not_simulated        arguments of the deployment that change nothing here; `not_read`: inputs
                         that are left out
    assumed_acceptance   the probability that a draft token is accepted, where nobody gave it
    adapters_guessed     release and GPU whose steps with LoRA adapters nobody measured
    pictures_guessed     engine and GPU whose times of pictures nobody measured
    draft                the model that drafts; `own_draft`: the key of older runs for it
    """

    assumed: list[str] = []
    not_read: str = ""
    not_simulated: list[str] = []
    priorities_unused: bool = False
    profile: str | UnsetType = UNSET
    unmeasured: str | UnsetType = UNSET
    vendor_unmeasured: bool | UnsetType = UNSET
    engine_unmeasured: bool | UnsetType = UNSET
    uncovered: list[str] = []
    moves_in_waves: bool | UnsetType = UNSET
    nodes_crossed: int | UnsetType = UNSET
    own_profile: bool | UnsetType = UNSET
    adapters_guessed: str | UnsetType = UNSET
    pictures_guessed: str | UnsetType = UNSET
    draft: str | UnsetType | None = UNSET
    assumed_acceptance: float | UnsetType = UNSET
    own_draft: bool | UnsetType = UNSET


class ImportedFrom(msgspec.Struct, kw_only=True):
    """The files that a run was imported from. `cells`: analyse.imported_run.ImportedCell of each,
    as JSON has it."""

    tool: str | None = None
    files: list[str] = []
    cells: list[dict[str, Any]] = []


class PooledCell(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the pools of a simulated deployment did in a cell.

    encode_busy           share of the time in which encoders worked, of that part of them that had
                          most to do (threads, processors, towers, network cards), until their last
                          picture was out; `encode_s`: a request's mean time there. None: there are
                          no encoders. Of those behind that do `both`, all else is None
    prefill_tokens_per_s  prompt tokens computed; `decode_tokens_per_s`: answer tokens written; over
                          the whole cell
    prefill_busy          share of the time in which prefill workers computed
    transfers             KV caches handed over: as many as requests, or some were served by one
                          side alone
    room_s                mean wait of a request for room in the decode pool; `prefill_s`: its time
                          in the prefill pool, queue and steps; `link_s`: from a computed prompt to
                          a cache that decodes
    limit                 `encode`, `prefill`, `decode` or `link`: the pool or way that is full;
                          `none`; `both`: encoders are not, and of the others it is not known
    """

    limit: str
    encode_busy: float | None = None
    encode_s: float | None = None
    prefill_tokens_per_s: float | None = None
    decode_tokens_per_s: float | None = None
    prefill_busy: float | None = None
    transfers: int | None = None
    room_s: float | None = None
    prefill_s: float | None = None
    link_s: float | None = None


_Count = Annotated[int, msgspec.Meta(gt=-(1 << 53), lt=1 << 53)]
"""Larger numbers count nothing of a run, and floats cannot hold them all."""
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Described = _Text | dict[str, Any] | None
"""A name; of what is the user's own, a mapping with its `name` and all that describes it."""


class WorkerRecord(msgspec.Struct, kw_only=True, frozen=True):
    """Holds the stored facts of workers that are alike; names as in the shorthand of
    deployments."""

    gpu: _Described = None
    gpus: _Count | None = None
    nodes: _Count | None = None
    tp: _Count | None = None
    pp: _Count | None = None
    dp: _Count | None = None
    ep: _Count | None = None
    arguments: dict[str, Any] = {}


class PoolRecord(WorkerRecord, kw_only=True, frozen=True):
    """Holds the stored facts of the workers of one role, `workers` of them."""

    role: str
    workers: Annotated[int, msgspec.Meta(gt=0, lt=1 << 53)]
    gpus: Annotated[int, msgspec.Meta(gt=0, lt=1 << 53)]


class DeploymentRecord(WorkerRecord, kw_only=True, frozen=True):
    """Holds the stored facts of a run's deployment; None where nobody said it.

    name          in shorthand
    model         as it is served; `architecture`: the catalogue's name for it, where that
                  is another
    stated        the user's words for it; `doubts`: what the server reports otherwise
    pools         where prefill and decode are apart
    """

    name: str | None = None
    model: _Described = None
    architecture: _Described = None
    weights_dtype: _Text | None = None
    kv_dtype: _Text | None = None
    engine: _Text | None = None
    engine_version: _Text | None = None
    stated: _Text | None = None
    doubts: list[str] = []
    pools: list[PoolRecord] = []
    max_model_tokens: float | None = None


class SearchedLoad(msgspec.Struct, frozen=True):
    """A load that a search looked at: requests per second, or requests under way."""

    kind: Literal["rate", "concurrency"]
    value: float


class FoundMax(msgspec.Struct, kw_only=True, frozen=True):
    """The answer of a search for the highest load at which bounds hold.

    load        the highest that holds; `fails_at`: the lowest that fails; None: there was none
    confidence  with which both are known; `requests`: sent by all probes
    probes      cells of the search's document; `runs`: names of their run folders
    text        the answer in a sentence
    """

    load: SearchedLoad | None
    fails_at: SearchedLoad | None
    confidence: float = 0.0
    kind: Literal["rate", "concurrency"] = "rate"
    requests: int = 0
    probes: list[int] = []
    text: str = ""
    runs: list[str] = []

    @property
    def unit(self) -> str:
        """The unit of its loads."""
        load = self.load or self.fails_at
        kind = self.kind if load is None else load.kind
        return "under way" if kind == "concurrency" else "requests/s"


class FleetPoint(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Holds what a fleet costs, and how many requests it serves within their bounds.

    replicas    that are paid for, on average
    gpu_hours   None where nobody knows the GPUs of a replica
    attainment  share of requests within all their bounds; `by_class`: of each class of traffic
    met         whether the bounds on percentiles, and on every request, hold; None: there are none
    """

    replicas: float
    gpu_hours: float | None = None
    attainment: float | None = None
    by_class: dict[str, float] = {}
    met: bool | None = None


class FleetFigures(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Replicas that came and went during a run; lists are of (seconds from its beginning, value).

    autoscaler     its name; `policy`: its law
    replicas       that served; `wanted`, `paid`: that were asked for, and that cost
    metric         that decides first; `readings`: its values at each decision
    attained       attainment of what came from then on
    start_up_s     mean, of `start_up_from`: given, measured or assumed
    starts         replicas that were asked for; `held`: requests that waited at the router; `cut`:
                   that ended with their replica
    point          of this fleet; `static`: the fewest replicas that hold the bounds, all the time;
                   `mean`: as many as this fleet has on average; `oracle`: in each window the fewest
                   that hold them, by who knows the future
    sampled        share of the requests that static fleets and oracle were simulated with
    source         of a measured run: where its replicas are counted
    """

    autoscaler: str = ""
    policy: str = ""
    gpu_hours: float | None = None
    attainment: float | None = None
    replicas: list[tuple[float, int]] = []
    wanted: list[tuple[float, int]] = []
    paid: list[tuple[float, int]] = []
    metric: str = ""
    readings: list[tuple[float, float]] = []
    attained: list[tuple[float, float]] = []
    start_up_s: float | None = None
    start_up_from: str = ""
    starts: int = 0
    held: int = 0
    cut: int = 0
    point: FleetPoint | None = None
    static: FleetPoint | None = None
    mean: FleetPoint | None = None
    oracle: FleetPoint | None = None
    sampled: float = 1.0
    source: str = ""


class RunSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The settings of a run.

    label            the user's name for this setup
    workload         as Plan.workload; with "mode": "offline" where no server was in between
    deployment       as the user, a simulation or an imported file has it; `deployed` reads it
    prefix_cache     what was done about it; True or False where an imported file says whether it
                     was on
    gpus             this machine's, watched while a server on it was measured
    expected_e2e_s   about how long a request of each cell takes, where that decided how many there
                     are
    headers          names alone, and so `extra_body_fields`; their values may be secrets
    sent             of these that are not named as keys are: digests of their values
    policy           the simulated scheduler's; `schedulers`: how many there are
    intervals        by cell and metric, factors by which a prediction may be off; `slo_factors`: by
                     bound
    pools            by cell, where prefill and decode are apart
    pictures         what made them: the library, the SHA-256 of the first one's pixels
    own_power        of loads that the profile has the watts of: ln(measured/predicted)
    check            how answers are graded; `least`: the share that should be right
    engine_arguments what an engine was loaded with for batches; `loaded`: the model, as a path or
    an id
    sweep_ended      loads above the one at which throughput stopped growing were left out
    find_max         of the run that a search's answer is about: the answer
    fleet            replicas that an autoscaler added and removed
    """

    label: str | UnsetType | None = UNSET
    scenario: str | None = None
    workload: dict[str, Any] = {}
    dialect: str | UnsetType | None = UNSET
    grace_s: float | None = None
    deployment: dict[str, Any] = {}
    sampling: dict[str, Any] | None = None
    prefix_cache: bool | str | None = None
    expected_e2e_s: list[float] = []
    find_max: FoundMax | None = None
    # measured
    structured: str | UnsetType | None = UNSET
    check: dict[str, Any] | None = None
    pictures: dict[str, str] | None = None
    route: str | None = None
    history: str | None = None
    extra_body_fields: list[str] | None = None
    headers: list[str] | None = None
    sent: dict[str, str] | None = None
    timeouts: dict[str, float] | None = None
    gpu_metrics: list[str] = []
    worker_metrics: list[str] = []
    gpus: list[dict[str, Any]] = []
    provenance: Provenance = Provenance()
    worker_clocks: list[WorkerClock] = []
    sweep_ended: bool = False
    engine_arguments: Any = None
    loaded: str | None = None
    # simulated
    policy: dict[str, Any] | None = None
    flow_control: dict[str, Any] | None = None
    schedulers: int | None = None
    turnaround_s: float | None = None
    basis: PredictionBasis | None = None
    profile: str | None = None
    first_token: FirstToken | None = None
    pools: list[PooledCell] = []
    fleet: FleetFigures | None = None
    characters_per_token: float | None = None
    intervals: list[Mapping[str, _Factors]] = []
    electricity: Electricity | None = None
    own_power: list[float] = []
    slo_factors: list[Mapping[str, _Factors]] = []
    # imported
    imported: ImportedFrom | None = msgspec.field(default=None, name="import")

    @property
    def deployed(self) -> DeploymentRecord:
        """The deployment, as far as it can be read."""
        return _read_fields(DeploymentRecord, self.deployment)


def read_settings(stored: object) -> RunSettings:
    """Read settings as JSON has them; a value that is another version's or program's is left
    out."""
    return _read_fields(RunSettings, stored if isinstance(stored, dict) else {})


_Stored = TypeVar("_Stored", bound=msgspec.Struct)


def _read_fields(kind: type[_Stored], stored: Mapping[str, Any]) -> _Stored:
    """Read each field that is of its type; the others have their defaults."""
    read: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in stored:
            with contextlib.suppress(msgspec.ValidationError):
                read[field.name] = msgspec.convert(stored[field.encode_name], field.type)
    return kind(**read)
