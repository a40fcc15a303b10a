"""The seconds that pictures take of a server: on its processors before the queue, and in the step
that encodes them.

    decoded  = 0.3 (a + b·pixels) of each picture, on one of the encoder's threads
    prepared = 0.7 (a + b·pixels), those of a request one after another, on one of its processors
    encoded  = e₀ of a step that encodes any + Σ FLOPs / (x·peak)

e₀ and x are of seven square pictures of 224 to 1,568 pixels a side on an RTX 3090 (a tower of 27
layers, published beside a port of Qwen3.5): 9.6 ms + 24.3 ms/TFLOP, 58 % of the peak, is within 7 %
of each. a and b lie between what decoding and a processor took of one slow core for 512x512 to
1920x1080 pixels, and the 167 ms that are left of a first token of Qwen2.5-VL-7B on an H100;
decoding is 13 to 29 % of both. vLLM's renderer has one worker for each API server (0.32:
renderer_num_workers), SGLang's tokenizer manager one (0.5.23; before, it blocked its event loop);
both decode files on several threads. Of other machines there are no such measurements: all is
guessed within a factor of two, on a processor of ten, until `loadstone calibrate` learns it.
"""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from loadstone.core.plan import Plan
from loadstone.core.vectors import Floats, Ints64
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.pictures import Encoder
from loadstone.predict.step_time.boards import architecture_of
from loadstone.predict.step_time.coefficients import PROCESSOR

TERMS = {
    "picture_s": "the host's time for each picture",
    "pixel_s": "the host's time for each pixel",
    "fixed_s": "the fixed part of a step that encodes",
    "peaks": "the encoder's time for each FLOP",
}
"""Terms of pictures that are learned. peaks: how many times as long as at the peak (1/x)."""
DECODING = 0.3
_GUESS, _FACTOR = (3e-3, 50e-9, 9.6e-3, 1 / 0.58), 2.0
"""On a GPU; the ends of the 80 % interval are so many times away."""
_OF_PROCESSOR, _PROCESSOR_FACTOR = (2e-3, 30e-9, 1e-3, 4.0), 10.0
"""The same on a processor: the host's work is what one slow core took, and no kernel is launched
[G]."""


class PictureTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds TERMS as logarithms, in their order; their covariance; and, where they were learned
    with a profile's coefficients, their covariance with these. `learned`: the names of those that
    the measurements tell; `limits`: by how much each can be larger at most, in ln, as the
    measurements hold all of them together."""

    logarithms: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    shared: tuple[tuple[float, ...], ...] = ()
    learned: tuple[str, ...] = ()
    limits: tuple[float, ...] = ()

    def draws(self, n: int, seed: int, moved: Floats | None, known: Floats | None) -> Floats:
        """Draw by how much terms are off, in ln, where the coefficients, of the covariance `known`,
        are `moved` by so much, draws × coefficients."""
        rest, drawn = np.array(self.covariance), np.zeros((n, len(self.covariance)))
        if self.shared and moved is not None and known is not None:
            follows = np.linalg.solve(known, np.array(self.shared).T)
            rest, drawn = rest - np.array(self.shared) @ follows, moved @ follows
        spread, axes = np.linalg.eigh(rest)
        normal = np.random.default_rng([seed, 2]).standard_normal(drawn.shape)
        drawn = drawn + normal * np.sqrt(np.maximum(spread, 0.0)) @ axes.T
        return np.asarray(np.minimum(drawn, self.limits or math.inf), np.float64)


def guess_terms(*, of_processor: bool) -> PictureTerms:
    """Return what is believed before a measurement: on a GPU all terms are as much off as one of
    them."""
    terms, factor = (_OF_PROCESSOR, _PROCESSOR_FACTOR) if of_processor else (_GUESS, _FACTOR)
    spread = math.log(factor) / 1.2816
    alike = np.identity(len(terms)) if of_processor else np.ones((len(terms),) * 2)
    covariance = tuple(map(tuple, (spread**2 * alike).tolist()))
    return PictureTerms(tuple(map(math.log, terms)), covariance)


class Picture(NamedTuple):
    """Holds one picture of a prompt.

    start, end   its tokens' places in the prompt
    embeddings   that the tower makes of so many patches
    flops        that it takes for them; prepare_s: seconds on a thread of the host
    states       that the cache keeps for layers of cross attention, before the prompt's tokens
    name         the same for the same picture
    """

    start: int
    end: int
    embeddings: int
    patches: int
    flops: float
    prepare_s: float
    states: int = 0
    name: Hashable = None


class PictureTimes(NamedTuple):
    """Seconds of pictures.

    ranks        that encode, each a part of a picture, or with `dealt` pictures of its own
    guessed      of which machine there is no measurement; terms: that they are made of
    state_flops  of a state's keys and values for cross attention
    unread       share of the layers that see no states
    """

    encoder: Encoder
    picture_s: float
    pixel_s: float
    fixed_s: float
    flop_s: float
    ranks: int
    guessed: str
    terms: PictureTerms
    state_flops: float = 0.0
    unread: float = 0.0

    def picture(self, width: int, height: int, start: int = 0) -> Picture:
        """Return what a picture of so many pixels is in a prompt."""
        visual = self.encoder.visual
        counted = visual.count(width, height)
        prepare_s = self.picture_s + self.pixel_s * width * height
        flops = (visual.flops(counted) or 0.0) + counted.cross * self.state_flops
        end, patches = start + counted.tokens, counted.patches
        return Picture(start, end, counted.seen, patches, flops, prepare_s, counted.cross)

    def encode_s(self, pictures: Iterable[Picture]) -> float:
        """Return what a step takes longer that encodes these."""
        flops = sorted((picture.flops for picture in pictures), reverse=True)
        if not flops:
            return 0.0
        if self.encoder.copies:
            # Each goes to a rank of its own, and the fullest rank is waited for.
            return self.fixed_s + self.flop_s * sum(flops[:: self.ranks])
        return self.fixed_s + self.flop_s * sum(flops) / self.ranks

    def draws(
        self, n: int, seed: int, moved: Floats | None = None, known: Floats | None = None
    ) -> list["PictureTimes"]:
        """Return the times, drawn from what is known of them, as PictureTerms has it."""
        return [self.at(steps) for steps in self.terms.draws(n, seed, moved, known)]

    def at(self, steps: Sequence[float] | Floats) -> "PictureTimes":
        """Return the times with TERMS that are larger by so much, in ln."""
        picture, pixel, fixed, flop = map(math.exp, steps)
        return self._replace(
            picture_s=picture * self.picture_s,
            pixel_s=pixel * self.pixel_s,
            fixed_s=fixed * self.fixed_s,
            flop_s=flop * self.flop_s,
        )


def picture_times(rules: EngineRules, terms: PictureTerms | None = None) -> PictureTimes | None:
    """Return the times of a deployment's pictures, by these terms or as they are guessed; None: it
    takes none, or too little is known."""
    worker = rules.worker
    terms = terms or guess_terms(of_processor=architecture_of(worker.gpu) == PROCESSOR)
    encoder = rules.encoder(rules.limits()) if rules.sized else None
    gpu_peaks = worker.gpu.flops_per_s
    peak = gpu_peaks.get("bf16") or max(gpu_peaks.values(), default=0.0)
    if encoder is None or not peak:
        return None
    picture_s, pixel_s, fixed_s, peaks = map(math.exp, terms.logarithms)
    guessed = "" if terms.shared else f"{worker.engine} on {worker.gpu.name}"
    flop_s = peaks / peak
    times = PictureTimes(encoder, picture_s, pixel_s, fixed_s, flop_s, worker.tp, guessed, terms)
    cross, model = worker.model.cross, worker.model
    if cross is None:
        return times
    # 2 FLOPs for each weight of keys and values, of which the cache has 2 bytes for each number.
    state_flops = cross.count * model.hidden * cross.kv_bytes_per_token("bf16")
    return times._replace(state_flops=state_flops, unread=1 - cross.count / model.layer_count)


class PictureShare(NamedTuple):
    """Holds the pictures of a size in pixels, of all requests: how many one has on average, how
    many there are that differ, the share of those that nobody had before, and whether they stand
    before the text."""

    width: int
    height: int
    mean: float
    different: int = 0
    new: float = 1.0
    first: bool = False


PictureShares = tuple[PictureShare, ...]


def picture_shares(plan: Plan, rows: Ints64 | None = None) -> PictureShares:
    """Return the pictures of a plan's requests, or of some of its rows, by size and place."""
    if plan.pictures is None:
        return ()
    rows = np.arange(len(plan)) if rows is None else rows
    pictures, items = plan.pictures.take(rows), plan.prompt[rows]
    filed = np.array([bool(shape.files) for shape in pictures.shapes])[pictures.shape]
    whose = np.where(pictures.group >= 0, pictures.group, np.where(filed, items, -1))
    whose = np.where(whose < 0, -1 - np.arange(len(rows)), whose)
    _, first, same = np.unique(
        np.stack([pictures.shape, whose]), axis=1, return_index=True, return_inverse=True
    )
    largest = np.zeros(len(first), np.int64)
    np.maximum.at(largest, same.ravel(), pictures.count)
    size = len(pictures.shapes)
    counts = np.bincount(pictures.shape, pictures.count, size)
    different = np.bincount(pictures.shape[first], largest, size)
    sums = defaultdict[tuple[int, int, bool], Floats](lambda: np.zeros(2))
    for number in np.flatnonzero(counts).tolist():
        shape = pictures.shapes[number]
        for file in shape.sizes:
            key = file.width, file.height, shape.place == "first"
            sums[key] += counts[number], different[number]
    return tuple(
        PictureShare(width, height, total / len(rows), int(kinds), kinds / total, leads)
        for (width, height, leads), (total, kinds) in sums.items()
    )


class PictureWork(NamedTuple):
    """Holds the mean seconds of a request's pictures: until they are prepared, decoded at the same
    time; of the part of the host that has most to do, by which it holds up others; and of the step
    that encodes them."""

    prepare_s: float = 0.0
    host_s: float = 0.0
    encode_s: float = 0.0


def mean_picture_work(
    times: PictureTimes | None, shares: PictureShares, *, prefix_cache: bool
) -> PictureWork:
    """Return the work of pictures, but for what is found of those that come again: tokens with a
    `prefix_cache`, embeddings and prepared ones as far as there is room for all that differ."""
    if times is None or not shares:
        return PictureWork()
    encoder, kinds = times.encoder, [times.picture(*share[:2]) for share in shares]
    pairs = list(zip(shares, kinds, strict=True))
    embedded = sum(share.different * kind.embeddings for share, kind in pairs)
    patches = sum(share.different * kind.patches for share, kind in pairs)
    kept, prepared = (
        min(1.0, room / max(1, needed))
        for room, needed in ((encoder.kept, embedded), (encoder.prepared, patches))
    )
    mean = sum(share.mean for share in shares)
    decode_s = process_s = flops = encoded = 0.0
    for share, kind in pairs:
        found = 1 - share.new
        decode_s += share.mean * DECODING * kind.prepare_s
        process_s += share.mean * (1 - DECODING) * kind.prepare_s * (1 - found * prepared)
        left = share.mean * (1 - found * (1.0 if share.first and prefix_cache else kept))
        flops += left * kind.flops
        encoded += left
    ranks = min(times.ranks, max(1.0, encoded)) if encoder.copies else times.ranks
    encode_s = times.fixed_s * min(1.0, encoded) + times.flop_s * flops / ranks
    prepare_s = decode_s / max(1.0, min(mean, encoder.threads)) + process_s
    host_s = max(decode_s / encoder.threads, process_s / encoder.processors)
    return PictureWork(prepare_s, host_s, encode_s)
