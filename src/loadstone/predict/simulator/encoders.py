"""Workers that encode pictures for others: a queue before the schedulers.

The pictures of a request are dealt out to the workers in turn, as vLLM's proxy and SGLang's
receiver do. A worker prepares its own, on threads and a processor of its own, and encodes in
steps: of what waits when it is free, as much as a step takes. Embeddings of T tokens, T · hidden ·
2 bytes · (1 + deepstack), leave it one after another over its network card; when the last of a
request is there, its prompt is T tokens that no tower is needed for. Before 0.32 vLLM's proxy sends
the request on with its pictures, which the hosts behind it prepare once more.
"""

from heapq import heappop, heappush
from typing import Any, NamedTuple

from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.deployment.deployment import Deployment
from loadstone.core.errors import InputError
from loadstone.engines import rules_of
from loadstone.engines.handover import picture_bytes_per_s
from loadstone.predict.simulator.engine import NEVER
from loadstone.predict.simulator.pictures import LaterArrivals, PictureHost
from loadstone.predict.step_time.pictures import Picture, PictureTimes, picture_times
from loadstone.predict.step_time.profile import profile_of


class EncoderPool(NamedTuple):
    """Holds `workers` that encode. together: requests that a step encodes at most; embedding_s: of
    each on its way; again: pictures are prepared once more behind them."""

    times: PictureTimes
    workers: int
    together: int
    embedding_s: float
    again: bool = False

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
    again = rules.version < encoding.again_until
    return EncoderPool(times, pool.workers, encoding.together, embedding_s, again)


class EncoderWork:
    """Holds what the encoders of a cell keep from step to step: a host each, and sums of their
    work.

    requests, request_s  with pictures, and how long they were there: queue, work and way out
    encode_s, link_s     of all towers, and of all network cards
    end_s                when the last embeddings were out
    """

    def __init__(self, pool: EncoderPool, start_s: float) -> None:
        self.pool, self.start_s = pool, start_s
        self.hosts = [PictureHost(pool.times.encoder) for _ in range(pool.workers)]
        self.requests = 0
        self.request_s = self.encode_s = self.link_s = 0.0
        self.end_s = start_s

    def busy_share(self) -> float:
        """Return the share of the time until `end_s` in which the part of the encoders worked that
        had most to do: threads, processors, towers or network cards."""
        encoder = self.pool.times.encoder
        decode_s = sum(host.decode_s for host in self.hosts) / encoder.threads
        process_s = sum(host.process_s for host in self.hosts) / encoder.processors
        most_s = max(decode_s, process_s, self.encode_s, self.link_s)
        whole_s = len(self.hosts) * max(1e-9, self.end_s - self.start_s)
        return min(1.0, most_s / whole_s)


class _Encoder:
    """A worker: what waits as (when it is prepared, the request, the picture), and when it is
    free."""

    def __init__(self, host: PictureHost) -> None:
        self.host = host
        self.queue: list[tuple[float, int, Picture]] = []
        self.free_s = self.link_free_s = 0.0

    @property
    def begin_s(self) -> float:
        return max(self.free_s, self.queue[0][0]) if self.queue else NEVER


class EncodedArrivals(LaterArrivals):
    """Arrivals of requests once encoders have prepared and encoded their pictures."""

    def __init__(self, *client: Any, work: EncoderWork) -> None:
        super().__init__(*client)
        self._work, self._pool = work, work.pool
        self._encoders = [_Encoder(host) for host in work.hosts]
        self._turn = 0
        # Since when a request is here, its pictures that are, and when the others were out.
        self._under_way: dict[int, tuple[float, int, float]] = {}

    def __bool__(self) -> bool:
        arrivals, ready = self._arrivals, self.ready
        while True:
            encoder = min(self._encoders, key=lambda worker: worker.begin_s)
            arrival_s = arrivals[0][0] if arrivals else NEVER
            ready_s = ready[0][0] if ready else NEVER
            if arrival_s < NEVER and arrival_s <= min(encoder.begin_s, ready_s):
                self._queue(*self._pop(arrivals))
            elif encoder.begin_s < NEVER and encoder.begin_s <= ready_s:
                self._encode(encoder)
            else:
                return bool(ready)

    def _queue(self, at_s: float, index: int) -> None:
        pictures = self._pictures_of(index)
        if not pictures:
            heappush(self.ready, (at_s, index))
            return
        self._under_way[index] = at_s, len(pictures), at_s
        for first in range(min(len(pictures), self._pool.workers)):
            encoder = self._encoders[(self._turn + first) % self._pool.workers]
            dealt = pictures[first :: self._pool.workers]
            prepared_s = encoder.host.prepare(dealt, at_s)
            for picture in dealt:
                heappush(encoder.queue, (prepared_s, index, picture))
        self._turn += len(pictures)

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
            heappop(encoder.queue)
        encode_s = self._pool.times.encode_s(picture for _, picture in step)
        encoder.free_s = begin_s + encode_s
        self._work.encode_s += encode_s
        for index, picture in step:
            link_s = picture.embeddings * self._pool.embedding_s
            over_s = max(encoder.free_s, encoder.link_free_s) + link_s
            encoder.link_free_s = over_s
            self._work.link_s += link_s
            since_s, left, last_s = self._under_way.pop(index)
            last_s = max(last_s, over_s)
            if left > 1:
                self._under_way[index] = since_s, left - 1, last_s
                continue
            heappush(self.ready, (last_s, index))
            self._work.requests += 1
            self._work.request_s += last_s - since_s
            self._work.end_s = max(self._work.end_s, last_s)
