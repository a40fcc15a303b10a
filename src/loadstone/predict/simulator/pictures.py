"""Pictures of simulated requests: what each prompt holds, and their way over the host's threads."""

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.plan import Plan
from loadstone.predict.step_time.pictures import Picture, PictureTimes


class PromptPictures:
    """The pictures of a cell's prompts, and where they stand; those of earlier turns were encoded
    when they came."""

    def __init__(self, plan: Plan, cell: int, times: PictureTimes | None) -> None:
        """Raises InputError where the deployment takes no pictures, or it is not known how."""
        if times is None:
            raise InputError(
                "--images: how this deployment encodes pictures is not known; name a model with a"
                " vision_config, in vllm, sglang or llama.cpp"
            )
        self.times = times
        self._plan, self._first = plan, plan.rows(cell).start
        self._kept: dict[tuple[int, int], Picture] = {}

    def of(self, row: int, prompt_tokens: int) -> tuple[Picture, ...]:
        """Return those of a cell's row, whose prompt has so many tokens with all turns before."""
        assert self._plan.pictures is not None  # noqa: S101
        planned = self._plan.pictures.of_row(self._first + row)
        if planned is None:
            return ()
        shape = planned.shape
        key = shape.width, shape.height
        if key not in self._kept:
            self._kept[key] = self.times.picture(*key)
        one = self._kept[key]
        each = one.end + shape.markers
        own = max(0, int(self._plan.input_tokens[self._first + row]))
        begin = prompt_tokens - each * planned.images
        if shape.place == "first":
            begin -= own
        starts = range(begin, begin + each * planned.images, each)
        return tuple(one._replace(start=start, end=start + one.end) for start in starts)


class PreparedArrivals:
    """Arrivals of a client's requests at the scheduler once their pictures are prepared, by the
    first thread that is free, in the order in which they come. It is read as the client's own
    arrivals are: whether there is any, and the first."""

    def __init__(
        self,
        arrivals: list[tuple[float, int]] | deque[tuple[float, int]],
        pop: Callable[[Any], tuple[float, int]],
        work_s: Callable[[int], list[float]],
        threads: int,
    ) -> None:
        """`work_s`: seconds on a thread of each picture of a request by its index."""
        self._arrivals, self._pop, self._work_s = arrivals, pop, work_s
        self._free = [0.0] * threads
        heapify(self._free)
        self._ready: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        arrivals, ready = self._arrivals, self._ready
        while arrivals and (not ready or arrivals[0][0] <= ready[0][0]):
            at_s, index = self._pop(arrivals)
            over_s = at_s
            for seconds in self._work_s(index):
                end_s = max(at_s, self._free[0]) + seconds
                heapreplace(self._free, end_s)
                over_s = max(over_s, end_s)
            heappush(ready, (over_s, index))
        return bool(ready)

    def __getitem__(self, place: int) -> tuple[float, int]:
        return self._ready[place]

    @staticmethod
    def take(prepared: "PreparedArrivals") -> tuple[float, int]:
        return heappop(prepared._ready)
