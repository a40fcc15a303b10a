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
both decode files on several threads. Of
other machines there are no such measurements: all is guessed within a factor of two.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from loadstone.core.plan import Plan
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.pictures import Encoder

FIXED_S, SHARE = 9.6e-3, 0.58
PICTURE_S, PIXEL_S = 3e-3, 50e-9
DECODING = 0.3
_SPREAD = math.log(2) / 1.2816
"""In ln: the 80 % interval is from half to twice as long."""


class Picture(NamedTuple):
    """Holds one picture of a prompt.

    start, end   its tokens' places in the prompt
    embeddings   that the tower makes
    flops        that it takes for them; prepare_s: seconds on a thread of the host
    states       that the cache keeps for layers of cross attention, before the prompt's tokens
    """

    start: int
    end: int
    embeddings: int
    flops: float
    prepare_s: float
    states: int = 0


class PictureTimes(NamedTuple):
    """Seconds of pictures.

    ranks        that encode, each a part of a picture, or with `dealt` pictures of its own
    spread       in ln; guessed: of which machine there is no measurement
    state_flops  of a state's keys and values for cross attention
    unread       share of the layers that see no states
    """

    encoder: Encoder
    fixed_s: float
    flop_s: float
    picture_s: float
    pixel_s: float
    ranks: int
    spread: float
    guessed: str
    state_flops: float = 0.0
    unread: float = 0.0

    def picture(self, width: int, height: int, start: int = 0) -> Picture:
        """Return what a picture of so many pixels is in a prompt."""
        visual = self.encoder.visual
        counted = visual.count(width, height)
        prepare_s = self.picture_s + self.pixel_s * width * height
        flops = (visual.flops(counted) or 0.0) + counted.cross * self.state_flops
        end = start + counted.tokens
        return Picture(start, end, counted.seen, flops, prepare_s, counted.cross)

    def encode_s(self, pictures: Iterable[Picture]) -> float:
        """Return what a step takes longer that encodes these."""
        flops = sorted((picture.flops for picture in pictures), reverse=True)
        if not flops:
            return 0.0
        if self.encoder.copies:
            # Each goes to a rank of its own, and the fullest rank is waited for.
            return self.fixed_s + self.flop_s * sum(flops[:: self.ranks])
        return self.fixed_s + self.flop_s * sum(flops) / self.ranks

    def draws(self, n: int, seed: int) -> list["PictureTimes"]:
        """Return the times, drawn from what is known of them."""
        seen = np.random.default_rng([seed, 2]).standard_normal(n)
        return [self.at(factor) for factor in np.exp(self.spread * seen).tolist()]

    def at(self, factor: float) -> "PictureTimes":
        """Return the times, so many times as long."""
        return self._replace(
            fixed_s=factor * self.fixed_s,
            flop_s=factor * self.flop_s,
            picture_s=factor * self.picture_s,
            pixel_s=factor * self.pixel_s,
        )


def picture_times(rules: EngineRules) -> PictureTimes | None:
    """Return the times of a deployment's pictures; None: it takes none, or too little is known."""
    worker = rules.worker
    encoder = rules.encoder(rules.limits()) if rules.sized else None
    peaks = worker.gpu.flops_per_s
    peak = peaks.get("bf16") or max(peaks.values(), default=0.0)
    if encoder is None or not peak:
        return None
    flop_s = 1 / (SHARE * peak)
    guessed = f"{worker.engine} on {worker.gpu.name}"
    times = PictureTimes(encoder, FIXED_S, flop_s, PICTURE_S, PIXEL_S, worker.tp, _SPREAD, guessed)
    cross, model = worker.model.cross, worker.model
    if cross is None:
        return times
    # 2 FLOPs for each weight of keys and values, of which the cache has 2 bytes for each number.
    state_flops = cross.count * model.hidden * cross.kv_bytes_per_token("bf16")
    return times._replace(state_flops=state_flops, unread=1 - cross.count / model.layer_count)


PictureShares = tuple[tuple[int, int, float], ...]
"""Width and height of pictures in pixels, and how many of them a request has on average."""


def picture_shares(plan: Plan) -> PictureShares:
    """Return the pictures of a plan's requests by size."""
    pictures = plan.pictures
    if pictures is None:
        return ()
    counts = np.bincount(pictures.shape, pictures.count, len(pictures.shapes)) / len(plan)
    means = defaultdict[tuple[int, int], float](float)
    for shape, mean in zip(pictures.shapes, counts.tolist(), strict=True):
        for file in shape.sizes:
            means[file.width, file.height] += mean
    return tuple((*size, mean) for size, mean in means.items())


def mean_picture_s(times: PictureTimes | None, shares: PictureShares) -> tuple[float, float]:
    """Return the mean seconds of a request's pictures: until they are prepared, decoded at the same
    time, and of the step that encodes them."""
    if times is None or not shares:
        return 0.0, 0.0
    mean = sum(count for _, _, count in shares)
    prepare_s = flops = 0.0
    for width, height, count in shares:
        picture = times.picture(width, height)
        prepare_s += count * picture.prepare_s
        flops += count * picture.flops
    ranks = min(times.ranks, max(1.0, mean)) if times.encoder.copies else times.ranks
    encode_s = times.fixed_s * min(1.0, mean) + times.flop_s * flops / ranks
    decodes = DECODING / max(1.0, min(mean, times.encoder.threads))
    return prepare_s * (decodes + 1 - DECODING), encode_s
