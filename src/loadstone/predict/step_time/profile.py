"""Profiles: the coefficients of an engine (and its version) on a kind of GPU, how sure they are,
and where from.

A profile is a small JSON file. Shipped ones are packed into one, `profiles.json.gz`; a user's own,
written by `loadstone calibrate`, lies in the configuration folder. `covariance` is of the
logarithms, `residual` the spread of ln(measured/predicted) that remains with the best coefficients,
by quantity. `held_out` has, for each model family that the fit has seen, the logarithms of a fit
without it: what its own points are scored with. The widest profile has the `families` of models,
and what each adds to the logarithms of all profiles: kernels fit one model better than another.
`held_out_spread` has how many times as uncertain each coefficient is without a family's rows;
`wider`: how much wider intervals are, in ln, than the fit says, because no measurement covers the
deployment (coverage.py).
"""

import gzip
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from loadstone.catalogue.architecture.model import Model
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core import host
from loadstone.core.errors import InputError
from loadstone.core.files import read_json
from loadstone.core.vectors import Floats
from loadstone.engines import OLD_ERAS, rules_of
from loadstone.predict.step_time.boards import (
    architecture_of,
    is_amd,
    kind_of,
    measured_as,
    shapes_of,
)
from loadstone.predict.step_time.coefficients import (
    CLIENT_S,
    EXPERT_LAYERS,
    FRONTEND,
    INDEX,
    LEAST_FRONTEND_S,
    NAMES,
    PRIOR,
    PROCESSOR,
    PROCESSOR_PRIOR,
    PROCESSOR_SPREAD,
    SPREAD,
)
from loadstone.predict.step_time.coverage import Uncovered, uncovered, widening
from loadstone.predict.step_time.pictures import PictureTerms

Quantity = Literal["ttft", "tpot", "throughput"]
"""What is predicted of a point, and scored."""

FEW_ROWS = 5
"""Rows: with fewer, boards of an architecture that differ threefold in power and products rest on
one of them."""
MEASURED_VENDORS = ("nvidia", "any")
"""On whose GPUs present releases of engines were measured with every kind of model
(docs/accuracy.md)."""
_FRONTEND_SPREAD = 0.7
"""Of what a request takes before and after its steps, in ln, for it was measured of one engine on
one host [G]."""
ELSEWHERE: dict[Quantity, float] = {"ttft": 0.40, "tpot": 0.24, "throughput": 0.14}
"""What remains, at least, on machines and with launches that a fit has not seen, in ln: with it
four in five of benchmarks/public_points.csv lie inside where nothing is suspect in them, and three
in four of all (docs/accuracy.md)."""


class FitProvenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The points that a profile was fitted on; `kinds`, `families`: how many of its rows are of
    which kind of model (boards.kind_of), and of which family."""

    script: str
    date: str
    rows: int
    sources: dict[str, int]
    note: str = ""
    kinds: dict[str, int] = {}
    families: dict[str, int] = {}


class OtherArchitecture(InputError):
    """A user's profile is of another kind of GPU than the deployment."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Coefficients in the order of `names`, as logarithms. `families`: by the shapes of a model
    (boards.shapes_of), the family that its rows are held out with. `acceptance`: of guessed tokens,
    as measured engines counted it. `power`: by GPU, gaps of measured watts (power.gap_of()).
    `pictures`: what was learned of these; None: nothing.
    """

    name: str
    engine: str
    era: str
    architecture: str
    names: tuple[str, ...]
    logarithms: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    residual: dict[Quantity, float]
    provenance: FitProvenance
    held_out: dict[str, tuple[float, ...]] = {}
    held_out_spread: dict[str, tuple[float, ...]] = {}
    wider: float = 1.0
    families: dict[str, str] = {}
    family_shares: dict[str, tuple[float, ...]] = {}
    acceptance: float | None = None
    power: dict[str, list[float]] = {}
    pictures: PictureTerms | None = None
    schema: int = 1

    def values(self, without: str | None = None) -> Floats:
        """The coefficients; `without` a model family: as fitted without it, where it was in the
        fit."""
        return np.exp(self.held_out.get(without or "", self.logarithms))

    def joint_covariance(self) -> Floats:
        """Return the covariance of the coefficients and, behind them, of the terms of pictures that
        it has."""
        coefficients, terms = np.array(self.covariance), self.pictures
        if terms is None:
            return coefficients
        shared = np.array(terms.shared or np.zeros((len(terms.logarithms), len(coefficients))))
        return np.block([[coefficients, shared.T], [shared, np.array(terms.covariance)]])

    def rows_without(self, family: str) -> int:
        """Count the measurements behind it that are not of a model family."""
        return self.provenance.rows - self.provenance.families.get(family, 0)

    def wider_for(self, load: Sequence[Uncovered]) -> float:
        """Return how many times as wide a load's intervals are as those of the profile."""
        return max(1.0, widening(load) / self.wider)

    def draws(self, n: int, seed: int) -> list[Floats]:
        """Draw `n` vectors of coefficients from the log-normal that the fit left, as narrow as it
        left it: what a figure does there counts `wider` times, in ln."""
        rng = np.random.default_rng(seed)
        spread, axes = np.linalg.eigh(np.array(self.covariance) / self.wider**2)
        steps = rng.standard_normal((n, len(spread))) * np.sqrt(np.maximum(spread, 0.0))
        return list(np.exp(np.array(self.logarithms) + steps @ axes.T))


def rows_of(matrix: Floats) -> tuple[tuple[float, ...], ...]:
    """Return a matrix as a profile has its covariance."""
    return tuple(map(tuple, matrix.tolist()))


def prior_profile(name: str = "prior") -> Profile:
    """Return what is believed before any measurement."""
    return Profile(
        name=name,
        engine="*",
        era="*",
        architecture="*",
        names=NAMES,
        logarithms=tuple(PRIOR.tolist()),
        covariance=rows_of(np.diag(SPREAD**2)),
        residual={"ttft": 0.5, "tpot": 0.3, "throughput": 0.3},
        provenance=FitProvenance("predict/step_time/coefficients.py", "", 0, {}, "priors only"),
    )


def processor_profile() -> Profile:
    """Return the same of an engine on a processor, which no GPU's measurements say anything of."""
    return msgspec.structs.replace(
        prior_profile(PROCESSOR),
        architecture=PROCESSOR,
        logarithms=tuple(PROCESSOR_PRIOR.tolist()),
        covariance=rows_of(np.diag(PROCESSOR_SPREAD**2)),
        residual={"ttft": 1.0, "tpot": 1.0, "throughput": 1.0},
    )


def profile_of(worker: Worker, name: str | None = None, *, published: bool = False) -> Profile:
    """Return the user's profile in that file or of that name, else the shipped one for this engine
    and GPU, else the nearest: the same engine on any GPU, any engine on the same kind of GPU, any
    on any. A GPU of the user's own has the coefficients of its kind, and the uncertainty of a GPU
    that nobody has measured. `published`: as those who publish measure, with their clients; else
    as Loadstone's own client does."""
    engine, era = worker.engine, rules_of(worker).era
    architecture = architecture_of(worker.gpu)
    if name:
        profile = load(_find_file(name))
        if profile.architecture not in ("*", architecture):
            device = f"{worker.gpu.name} is {architecture}"
            raise OtherArchitecture(
                f"--profile {name}: it is of {profile.architecture}, {device}; leave it out, or"
                " make one there with `loadstone calibrate`"
            )
        return profile
    if architecture == PROCESSOR:
        return processor_profile()
    shipped = shipped_profiles()
    # AMD's libraries are one code: an engine unmeasured on one of its architectures is timed as on
    # another.
    measured = any(
        profile.architecture == architecture
        and (profile.engine == engine or not is_amd(architecture))
        for profile in shipped.values()
    )
    # AMD's libraries are one code: most like an unmeasured one's kernels are those of the measured
    # one.
    nearest = "cdna 3" if not measured and is_amd(architecture) else measured_as(worker.gpu)
    keys = (
        (engine, era, nearest),
        (engine, "*", nearest),
        (engine, era, "*"),
        (engine, "*", "*"),
        ("*", "*", nearest),
        ("*", "*", "*"),
    )
    for key in keys:
        if key in shipped:
            chosen = _adapt_to_kind(shipped[key], kind_of(worker.model))
            chosen = _adapt_to_family(chosen, family_of(worker.model))
            chosen = chosen if measured and not worker.gpu.given else _widen(chosen)
            chosen = _stretch(chosen, widening(uncovered_classes(worker)))
            return chosen if published or era in OLD_ERAS else _without_client(chosen)
    return prior_profile()


def uncovered_classes(worker: Worker) -> list[Uncovered]:
    """List the classes without measurements that a deployment is in, by the families that were
    measured on its architecture."""
    measured = shipped_profiles().get(("*", "*", architecture_of(worker.gpu)))
    families = () if measured is None else measured.provenance.families
    return uncovered(rules_of(worker), families, family_of(worker.model))


def leave_out(profile: Profile, family: str) -> Profile:
    """Return the profile of the fit without a model family, with that fit's uncertainty; the same
    where the family is not in the fit. With no rows left it is as uncertain as a GPU that nobody
    has measured."""
    if family not in profile.held_out:
        return profile
    times = np.array(profile.held_out_spread.get(family, np.ones(len(NAMES))))
    left = msgspec.structs.replace(
        profile,
        logarithms=profile.held_out[family],
        covariance=rows_of(times[:, None] * np.array(profile.covariance) * times),
        provenance=msgspec.structs.replace(profile.provenance, rows=profile.rows_without(family)),
    )
    if left.provenance.rows:
        return left
    wide = _widen(left)
    return _stretch(wide, 2.0) if is_amd(profile.architecture) and wide.wider == 1 else wide


def _without_client(profile: Profile) -> Profile:
    """Return the profile without what the clients of public measurements take. What is left is
    the engine's own, whatever GPU is behind it: it is that of all architectures together, but for
    AMD's, whose engines are builds of their own."""
    logarithms, covariance = np.array(profile.logarithms), np.array(profile.covariance)
    key = (profile.engine, profile.era, "*")
    alike = profile if is_amd(profile.architecture) else shipped_profiles().get(key, profile)
    for name, client_s, least_s in zip(FRONTEND, CLIENT_S, LEAST_FRONTEND_S, strict=True):
        row = INDEX[name]
        logarithms[row] = np.log(max(least_s, np.exp(alike.logarithms[row]) - client_s))
        covariance[row, :] = covariance[:, row] = 0.0
        covariance[row, row] = (profile.wider * _FRONTEND_SPREAD) ** 2
    return msgspec.structs.replace(
        profile, logarithms=tuple(logarithms.tolist()), covariance=rows_of(covariance)
    )


def _stretch(profile: Profile, times: float) -> Profile:
    """Return the profile with intervals so many times as wide, in ln."""
    if times == 1:
        return profile
    covariance = rows_of(np.array(profile.covariance) * times**2)
    return msgspec.structs.replace(profile, covariance=covariance, wider=profile.wider * times)


def unmeasured(worker: Worker, profile: Profile) -> str:
    """Name what there is no measurement of in `profile`, as profile_of() found it; "" where there
    are some, or where it is the user's own."""
    if is_own(profile):
        return ""
    architecture, shipped = architecture_of(worker.gpu), shipped_profiles()
    if worker.gpu.given:
        return worker.gpu.name
    if profile.architecture != architecture or profile.engine != worker.engine:
        return f"{worker.engine} on {architecture}"
    release = f"{worker.engine} {worker.engine_version or 'of today'}"
    if profile.era != rules_of(worker).era or not profile.provenance.rows:
        return f"{release} on {architecture}"
    # Later eras differ little from one another: what one of them tells of a kind of model holds for
    # the next.
    evidence = (
        profile
        if profile.era in OLD_ERAS
        else shipped.get((profile.engine, "*", architecture), profile)
    )
    kind = kind_of(worker.model)
    if kind not in evidence.provenance.kinds:
        return f"{release} with {kind} models on {architecture}"
    rows = evidence.provenance.rows
    return f"{worker.engine} on {architecture} but for {rows}" if rows < FEW_ROWS else ""


def engine_measured(worker: Worker) -> bool:
    """Tell whether its engine was measured on any GPU: llama.cpp was on none."""
    return any(engine == worker.engine for engine, _, _ in shipped_profiles())


def vendor_measured(worker: Worker) -> bool:
    """Tell whether a present release of its engine was measured with its kind of model on its
    vendor's GPUs: on AMD's that is known for each architecture."""
    if worker.gpu.vendor in MEASURED_VENDORS:
        return True
    pair = worker.engine, architecture_of(worker.gpu)
    present = [
        profile
        for (engine, era, architecture), profile in shipped_profiles().items()
        if (engine, architecture) == pair and era != "*" and era not in OLD_ERAS
    ]
    return any(kind_of(worker.model) in profile.provenance.kinds for profile in present)


def remaining(profile: Profile, source: str | None = None) -> dict[Quantity, float]:
    """Return what remains of ln(measured/predicted), by quantity, for a point of that `source`;
    None: on a user's machine.

    No less than ELSEWHERE, but where the fit has seen the source, or the profile is the user's own.
    """
    seen = is_own(profile) or source in _sources() or profile.architecture == PROCESSOR
    least: dict[Quantity, float] = {} if seen else ELSEWHERE
    return {
        name: profile.wider * max(value, least.get(name, 0.0))
        for name, value in profile.residual.items()
    }


def spreads(
    profile: Profile, slopes: Floats, quantity: Quantity, source: str | None = None
) -> Floats:
    """Return standard deviations of ln(measured/predicted) of a `quantity`, √(J·C·Jᵀ + s²) with s
    from remaining().

    `slopes`: d ln(predicted)/d ln(coefficient), a row for each point, behind them those of the
    terms of pictures where the profile has some. An 80 % interval is
    exp(±Z80·that), of scores and of what a calibration gains; that of a simulation has the same C
    and s, and draws in place of slopes.
    """
    count = slopes.shape[1]
    covariance = profile.joint_covariance()[:count, :count]
    variance = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return np.asarray(np.sqrt(variance + remaining(profile, source).get(quantity, 0.3) ** 2))


@cache
def _sources() -> frozenset[str]:
    return frozenset(
        name for profile in shipped_profiles().values() for name in profile.provenance.sources
    )


def is_own(profile: Profile) -> bool:
    """Tell whether it was made of a user's own measurements."""
    shipped = {shipped.name for shipped in shipped_profiles().values()}
    return bool(profile.provenance.rows) and profile.name not in shipped


def family_of(model: Model, family: str = "") -> str:
    """Name the family of the shipped fit that a point of this model belongs to: the one it is
    declared to, else that of the models of its shapes; "" where the fit has seen none."""
    widest = shipped_profiles().get(("*", "*", "*"), prior_profile())
    return family if family in widest.held_out else widest.families.get(shapes_of(model), "")


def _adapt_to_kind(profile: Profile, kind: str) -> Profile:
    """Return the profile for a kind of model. In an old era whose only experts were those of models
    with latent attention, others have the experts of the engine's releases together: those had
    kernels of their own.
    """
    shipped = shipped_profiles()
    era = shipped.get((profile.engine, profile.era, "*"), profile)
    wide = shipped.get((profile.engine, "*", profile.architecture), profile)
    if kind != "mixture-of-experts" or profile.era not in OLD_ERAS or kind in era.provenance.kinds:
        return profile
    expert_terms = np.array([name in EXPERT_LAYERS for name in NAMES])
    covariance = np.where(expert_terms[:, None] & expert_terms, wide.covariance, profile.covariance)
    covariance[expert_terms[:, None] != expert_terms] = 0.0  # the two are of different fits
    return msgspec.structs.replace(
        profile,
        logarithms=tuple(np.where(expert_terms, wide.logarithms, profile.logarithms).tolist()),
        covariance=rows_of(covariance),
    )


def _adapt_to_family(profile: Profile, family: str) -> Profile:
    """Add what the fit has learned of a model's family; nothing of a family that was in no fit."""
    widest = shipped_profiles().get(("*", "*", "*"))
    added = widest.family_shares.get(family) if widest is not None else None
    if added is None:
        return profile
    return msgspec.structs.replace(
        profile, logarithms=tuple((np.array(profile.logarithms) + added).tolist())
    )


def _widen(profile: Profile) -> Profile:
    """Widen a profile that was fitted without any of a kind's rows: it is as uncertain as a GPU
    with no rows at all, and at least as the kind that it is taken for."""
    shipped = shipped_profiles()
    for key in ((profile.engine, profile.era, "*"), (profile.engine, "*", "*"), ("*", "*", "*")):
        if key in shipped:
            wide = shipped[key]
            covariance = max(profile.covariance, wide.covariance, key=np.trace)
            return msgspec.structs.replace(profile, covariance=covariance, residual=wide.residual)
    return profile


def _find_file(name: str) -> Path:
    """Find a file of that path, or of that name among the user's profiles. Raises InputError where
    there is neither."""
    stored = user_folder() / f"{name}.json"
    for path in (Path(name), stored):
        if path.is_file():
            return path
    raise InputError(
        f"--profile {name}: neither a file nor a profile kept as {stored}; `loadstone calibrate`"
        " writes one"
    )


def load(path: Path) -> Profile:
    """Read and check a profile file. Raises InputError."""
    profile = read_json(path, Profile, _MOST_BYTES, "a profile", "`loadstone calibrate` writes one")
    return _check(profile, str(path))


def save(profile: Profile, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{profile.name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    return path


def save_packed(profiles: Iterable[Profile], path: Path) -> None:
    """Write the file of all shipped profiles, the same bytes for the same profiles."""
    ordered = sorted(profiles, key=lambda each: each.name)
    path.write_bytes(gzip.compress(msgspec.json.encode(ordered), mtime=0))


def user_folder() -> Path:
    return host.config_folder() / "profiles"


PACKED = "profiles.json.gz"
"""The file of all shipped profiles, beside this module."""
_MOST_BYTES = 64 << 20
_FAR = 100.0
"""Logarithms and variances of coefficients are far below it."""


@cache
def shipped_profiles() -> dict[tuple[str, str, str], Profile]:
    """Return the profiles of the package by engine, era and architecture, `*` for any."""
    packed = (resources.files("loadstone.predict.step_time") / PACKED).read_bytes()
    profiles = msgspec.json.decode(gzip.decompress(packed), type=list[Profile])
    return {(profile.engine, profile.era, profile.architecture): profile for profile in profiles}


def _check(profile: Profile, where: str) -> Profile:
    if profile.names != NAMES:
        raise InputError(f"profile {where}: its coefficients are of another version; write it anew")
    size = len(NAMES)
    if len(profile.logarithms) != size or any(len(row) != size for row in profile.covariance):
        raise InputError(f"profile {where}: {size} coefficients expected")
    numbers = np.concatenate(
        [profile.logarithms, np.ravel(profile.covariance), list(profile.residual.values())]
    )
    if not (np.abs(numbers) < _FAR).all() or min(profile.residual.values(), default=0.0) < 0:
        raise InputError(f"profile {where}: numbers that cannot be; write it anew")
    return profile
