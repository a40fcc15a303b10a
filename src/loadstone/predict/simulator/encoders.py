"""Workers that encode pictures for others: a queue before the schedulers.

The pictures of a request are dealt out to the workers in turn, as vLLM's proxy and SGLang's
receiver do. A worker encodes in steps: of what waits when it is free, as much as a step takes.
Embeddings of T tokens, T · hidden · 2 bytes · (1 + deepstack), leave it one after another over its
network card; when the last of a request is there, its prompt is T tokens that no tower is needed
for.
"""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappush
from typing import NamedTuple

from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.handover import picture_bytes_per_s
from loadstone.predict.simulator.engine import NEVER
from loadstone.predict.simulator.pictures import LaterArrivals
from loadstone.predict.step_time.pictures import Picture, PictureTimes, picture_times
from loadstone.predict.step_time.profile import profile_of


class EncoderPool(NamedTuple):
    """Holds `workers` that encode. together: requests that a step encodes at most; embedding_s: of
    each on its way."""

    times: PictureTimes
    workers: int
    together: int
    embedding_s: float

    def draws(self, n: int, seed: int) -> list["EncoderPool"]:
        """Return the pool with times drawn from what is known of them."""
        return [self._replace(times=times) for times in self.times.draws(n, seed)]


def encoder_pool(deployment: Deployment, profile: str | None = None) -> EncoderPool | None:
    """Return the workers of a deployment that encode, by the `profile`; None: it has none. Raises
    InputError."""
    pool = deployment.encoders
    if pool is None:
        return None
    rules, model = rules_of(pool.worker), pool.worker.model
    terms = profile_of(pool.worker, profile).pictures
    times, encoding = picture_times(rules, terms), rules.encoding
    if times is None or encoding is None:
        raise InputError(f"{deployment.name}: how long its encoders take is not known")
    numbers = model.hidden * (1 + times.encoder.tower.deepstack)
    rate = picture_bytes_per_s(pool.worker, deployment.prefiller)
    embedding_s = numbers * FORMATS[model.dtype].bytes / rate
    return EncoderPool(times, pool.workers, encoding.together, embedding_s)


class _Encoder:
    """A worker: what waits as (when it is prepared, the request, the picture), and when it is
    free."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, int, Picture]] = deque()
        self.free_s = self.link_free_s = 0.0

    @property
    def begin_s(self) -> float:
        return max(self.free_s, self.queue[0][0]) if self.queue else NEVER


class EncodedArrivals(LaterArrivals):
    """Arrivals of requests whose pictures are prepared, once they are encoded."""

    def __init__(
        self,
        prepared: LaterArrivals,
        pictures_of: Callable[[int], Sequence[Picture]],
        pool: EncoderPool,
    ) -> None:
        super().__init__()
        self._prepared, self._pictures_of, self._pool = prepared, pictures_of, pool
        self._encoders = [_Encoder() for _ in range(pool.workers)]
        self._turn = 0
        self._left: dict[int, int] = {}
        self._over_s: dict[int, float] = {}

    def __bool__(self) -> bool:
        ready = self.ready
        while True:
            encoder = min(self._encoders, key=lambda worker: worker.begin_s)
            arrival_s = self._prepared[0][0] if self._prepared else NEVER
            ready_s = ready[0][0] if ready else NEVER
            if arrival_s < NEVER and arrival_s <= min(encoder.begin_s, ready_s):
                self._queue(*self._prepared.take())
            elif encoder.begin_s < NEVER and encoder.begin_s <= ready_s:
                self._encode(encoder)
            else:
                return bool(ready)

    def _queue(self, at_s: float, index: int) -> None:
        pictures = self._pictures_of(index)
        if not pictures:
            heappush(self.ready, (at_s, index))
            return
        self._left[index], self._over_s[index] = len(pictures), at_s
        for picture in pictures:
            self._encoders[self._turn % self._pool.workers].queue.append((at_s, index, picture))
            self._turn += 1

    def _encode(self, encoder: _Encoder) -> None:
        """Encode the next step of a worker, and send what comes out."""
        begin_s, limit = encoder.begin_s, self._pool.times.encoder.step_tokens
        step: list[tuple[int, Picture]] = []
        embeddings, requests = 0, set[int]()
        while encoder.queue and encoder.queue[0][0] <= begin_s:
            _, index, picture = encoder.queue[0]
            embeddings += picture.embeddings
            requests.add(index)
            if step and (embeddings > limit or len(requests) > self._pool.together):
                break
            step.append((index, picture))
            encoder.queue.popleft()
        encoder.free_s = begin_s + self._pool.times.encode_s(picture for _, picture in step)
        for index, picture in step:
            over_s = max(encoder.free_s, encoder.link_free_s)
            over_s += picture.embeddings * self._pool.embedding_s
            encoder.link_free_s = over_s
            self._over_s[index] = max(self._over_s[index], over_s)
            self._left[index] -= 1
            if not self._left[index]:
                del self._left[index]
                heappush(self.ready, (self._over_s.pop(index), index))
