"""Pictures of simulated requests: what each prompt holds, and their way over the host's threads."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import accumulate
from typing import Any

from loadstone.core.errors import InputError
from loadstone.core.pictures import FileSize, PlannedPictures
from loadstone.core.plan import Plan
from loadstone.engines.sharding.pictures import Encoder
from loadstone.predict.step_time.pictures import DECODING, Picture, PictureTimes


class PictureHost:
    """Prepares pictures: each is decoded by the first thread that is free, those of a request are
    then prepared together by the first processor, in the order in which they come. What is prepared
    is kept, the least recently used going first; files are decoded all the same.

    decode_s, process_s  seconds of all threads and of all processors together
    """

    def __init__(self, encoder: Encoder, workers: int = 1) -> None:
        """`workers`: that stand behind it as one."""
        self.decode_s = self.process_s = 0.0
        self._threads = [0.0] * (encoder.threads * workers)
        self._processors = [0.0] * (encoder.processors * workers)
        self._room = encoder.prepared
        self._prepared: OrderedDict[Hashable, int] = OrderedDict()
        self._patches = 0

    def prepare(self, pictures: Sequence[Picture], at_s: float) -> float:
        """Return when the pictures of a request that come at `at_s` are prepared."""
        decoded_s, process_s = at_s, 0.0
        for picture in pictures:
            decode_s = DECODING * picture.prepare_s
            if not self._keep(picture):
                process_s += picture.prepare_s - decode_s
            decoded_s = max(decoded_s, _occupy(self._threads, at_s, decode_s))
            self.decode_s += decode_s
        self.process_s += process_s
        return _occupy(self._processors, decoded_s, process_s)

    def _keep(self, picture: Picture) -> bool:
        """Tell whether a picture is prepared already; if not, it is from now on."""
        if picture.name in self._prepared:
            self._prepared.move_to_end(picture.name)
            return True
        if picture.patches <= self._room:
            self._prepared[picture.name] = picture.patches
            self._patches += picture.patches
        while self._patches > self._room:
            self._patches -= self._prepared.popitem(last=False)[1]
        return False


def _occupy(servers: list[float], at_s: float, seconds: float) -> float:
    """Have the first of these that is free work from `at_s` on; return when it is done."""
    end_s = max(at_s, servers[0]) + seconds
    heapreplace(servers, end_s)
    return end_s


def known_times(times: PictureTimes | None) -> PictureTimes:
    """Return the times of pictures. Raises InputError where a deployment takes none, or it is not
    known how."""
    if times is None:
        raise InputError(
            "pictures: this model takes none, or how they are encoded is not known;"
            " docs/images.md lists the types of models"
        )
    return times


class PromptPictures:
    """The pictures of a cell's prompts, and where they stand; those of earlier turns were encoded
    when they came. `workers`: whose hosts prepare them."""

    def __init__(self, plan: Plan, cell: int, times: PictureTimes | None, workers: int) -> None:
        """Raises InputError where the deployment takes no pictures, or it is not known how."""
        self.times = known_times(times)
        self.host = PictureHost(self.times.encoder, workers)
        self._plan, self._first = plan, plan.rows(cell).start
        self._kept: dict[FileSize, Picture] = {}

    def of(self, index: int, row: int, prompt_tokens: int) -> tuple[Picture, ...]:
        """Return those of a request of a cell's row, whose prompt has so many tokens with all turns
        before."""
        assert self._plan.pictures is not None  # noqa: S101
        planned = self._plan.pictures.of_row(self._first + row)
        if planned is None:
            return ()
        shape = planned.shape
        pictures = [self._find(file) for file in shape.sizes] * planned.times
        around = shape.markers // shape.images
        text_tokens = max(0, int(self._plan.input_tokens[self._first + row]))
        tokens = [picture.end + around for picture in pictures]
        begin = prompt_tokens - sum(tokens)
        if shape.place == "first":
            begin -= text_tokens
        starts = accumulate(tokens[:-1], initial=begin)
        item = int(self._plan.prompt[self._first + row])
        names = picture_names(planned, index, item)
        return tuple(
            picture._replace(start=start, end=start + picture.end, name=name)
            for picture, start, name in zip(pictures, starts, names, strict=True)
        )

    def _find(self, file: FileSize) -> Picture:
        if file not in self._kept:
            self._kept[file] = self.times.picture(file.width, file.height)
        return self._kept[file]


def picture_names(planned: PlannedPictures, index: int, item: int = -1) -> list[Hashable]:
    """Return what each picture of a request is known by: those of a group are the same, and those
    of an item of a data set."""
    whose: Hashable = ("new", index)
    if planned.group is not None:
        whose = planned.group, planned.number
    elif planned.shape.files and item >= 0:
        whose = ("item", item)
    return [(whose, place) for place in range(planned.images)]


class LaterArrivals:
    """Arrivals of requests after some work on their pictures. It is read as the client's own are:
    whether there is any, and the first."""

    def __init__(
        self,
        arrivals: list[tuple[float, int]] | deque[tuple[float, int]],
        pop: Callable[[Any], tuple[float, int]],
        pictures_of: Callable[[int], Sequence[Picture]],
    ) -> None:
        """`arrivals`: the client's, of which `pop` takes the first; `pictures_of`: a request by its
        index."""
        self.ready: list[tuple[float, int]] = []
        self._arrivals, self._pop, self._pictures_of = arrivals, pop, pictures_of

    def __getitem__(self, place: int) -> tuple[float, int]:
        return self.ready[place]

    def take(self) -> tuple[float, int]:
        return heappop(self.ready)


class PreparedArrivals(LaterArrivals):
    """Arrivals of requests once a host has prepared their pictures."""

    def __init__(self, *client: Any, host: PictureHost) -> None:
        super().__init__(*client)
        self._host = host

    def __bool__(self) -> bool:
        arrivals, ready = self._arrivals, self.ready
        while arrivals and (not ready or arrivals[0][0] <= ready[0][0]):
            at_s, index = self._pop(arrivals)
            pictures = self._pictures_of(index)
            over_s = self._host.prepare(pictures, at_s) if pictures else at_s
            heappush(ready, (over_s, index))
        return bool(ready)
