"""Where operators are timed: a device, its clock, its random data, and the time that is left.

How a time is taken: warm up; capture a CUDA graph of many calls that go round over several copies of the data, so
many that the second-level cache cannot hold them; replay it, each replay between two events; divide by the calls. So
the host's launching is left out, as it is in engines that capture their steps, and weights come from device memory,
as they do there. What cannot be captured is launched one by one, and says so.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from loadstone.gpubench.points import Bench, Method, Moment, Point, Skipped
from loadstone.telemetry import PREFIX, Gpus

COPIES_OF_L2 = 6
"""Data that calls go round over, in sizes of the second-level cache: some of it survives a round at 2."""
_GRAPH_S = 2e-3
"""A replay lasts at least so long: starting one costs some microseconds."""
_MOST_CALLS = 1000
_REPLAYS = (10, 50)
_CPU_CALL_S = 2e-3
_FATAL = (
    "illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address",
    "illegal instruction", "ECC error", "GPU is lost",
)  # fmt: skip
"""After these the CUDA context is lost, and so is all that would follow."""


class Timed(NamedTuple):
    """Seconds of one call: over `n` repeats of `calls` calls."""

    median_s: float
    p10_s: float
    p90_s: float
    n: int
    calls: int
    method: Method


class OutOfTimeError(Exception):
    """The budget is spent."""


class Lab:
    """`device` is a torch device: `cuda`, or `cpu` to try the code without a GPU."""

    def __init__(
        self, bench: Bench, device: str, budget_s: float, *, gpus: Gpus | None = None, spend_s: float
    ) -> None:
        import torch

        self.torch: Any = torch
        self.bench = bench
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.broken: str | None = None
        self._begun_s = time.monotonic()
        self._budget_s = budget_s
        self._spend_s = spend_s
        self._gpus = gpus
        self._gpu: int | None = None
        self.generator = torch.Generator(device=self.device).manual_seed(0)
        if gpus is not None and self.cuda:
            uuid = str(getattr(torch.cuda.get_device_properties(self.device), "uuid", ""))
            # Without a UUID the one GPU that there is will be it.
            self._gpu = gpus.number_of(uuid) if uuid else (0 if torch.cuda.device_count() == 1 else None)

    # --- time and state ---------------------------------------------------------------------------------------

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._begun_s

    def check_time(self) -> None:
        if self.took_s > self._budget_s:
            raise OutOfTimeError

    def values(self) -> dict[str, float]:
        """The GPU's own word now; empty without telemetry."""
        if self._gpus is None or self._gpu is None:
            return {}
        return {each.name.removeprefix(PREFIX): each.value for each in self._gpus.read(self._gpu)}

    def note(self, when: str) -> None:
        """Keep the clocks, power and so on of this moment."""
        if values := self.values():
            self.bench.moments.append(Moment(when, round(self.took_s, 3), values))

    def sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def tidy(self) -> None:
        if self.cuda:
            self.torch.cuda.empty_cache()

    @property
    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info(self.device)[0]) if self.cuda else 1 << 30

    # --- data -------------------------------------------------------------------------------------------------

    def random(self, *shape: int, dtype: Any = None, scale: float = 1.0) -> Any:
        """Normal numbers: on zeros a GPU draws less power, and runs faster than it will on data."""
        dtype = dtype or self.torch.bfloat16
        made = self.torch.empty(shape, dtype=dtype, device=self.device)
        return made.normal_(0.0, scale, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> Any:
        return self.torch.randint(
            low, high, shape, generator=self.generator, device=self.device, dtype=self.torch.int64
        )

    def shuffled(self, count: int) -> Any:
        return self.torch.randperm(count, generator=self.generator, device=self.device)

    def copies(self, size_bytes: float) -> int:
        """How many copies of data that a call reads make it come from memory."""
        if not self.cuda:
            return 2
        return max(1, math.ceil(COPIES_OF_L2 * self.bench.device.l2_bytes / max(size_bytes, 1.0)))

    # --- timing -----------------------------------------------------------------------------------------------

    def time(self, call: Callable[[int], object], copies: int = 1) -> tuple[Timed, dict[str, float]]:
        """Seconds of `call(i)`, i going round over the copies; and the GPU's own word meanwhile."""
        if not self.cuda:
            return self._time_host(call, copies), {}
        for number in range(2 * copies if copies < 8 else copies + 2):
            call(number % copies)
        self.sync()
        each_s = max(self._round_s(call, min(copies, 16)), 1e-7)
        calls = _calls(each_s, copies)
        try:
            graph = self._capture(call, copies, calls)
            took_s = self._replay_s(graph)
            if took_s < _GRAPH_S / 2 and calls < _MOST_CALLS:
                # Launched one by one it had waited for the host.
                calls = _calls(took_s / calls, copies)
                graph = self._capture(call, copies, calls)
                took_s = self._replay_s(graph)
        except RuntimeError as error:
            if fatal(error):
                raise
            self.sync()
            return self._time_eager(call, copies, calls)

        def replay() -> None:
            graph.replay()

        timed, values = self._repeat(replay, calls, took_s, "graph")
        graph.reset()
        return timed, values

    def time_launching(self, call: Callable[[], object], calls: int) -> Timed:
        """Seconds of the host for one call: what launching costs while the GPU keeps up with it."""
        for _ in range(2):
            call()
        self.sync()
        taken = []
        for _ in range(_REPLAYS[0]):
            begun = time.perf_counter()
            for _ in range(calls):
                call()
            taken.append((time.perf_counter() - begun) / calls)
            self.sync()
        return _timed(taken, calls, "host")

    def _round_s(self, call: Callable[[int], object], calls: int) -> float:
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for number in range(calls):
            call(number)
        last.record()
        self.sync()
        return float(first.elapsed_time(last)) * 1e-3 / calls

    def _capture(self, call: Callable[[int], object], copies: int, calls: int) -> Any:
        graph, stream = self.torch.cuda.CUDAGraph(), self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.graph(graph):
                for number in range(calls):
                    call(number % copies)
        except RuntimeError:
            # Where ending a capture fails too, torch stays on the stream that it captured.
            self.torch.cuda.set_stream(stream)
            raise
        graph.replay()
        self.sync()
        return graph

    def _replay_s(self, graph: Any) -> float:
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        self.sync()
        return max(float(first.elapsed_time(last)) * 1e-3, 1e-7)

    def _time_eager(self, call: Callable[[int], object], copies: int, calls: int) -> tuple[Timed, dict[str, float]]:
        def several() -> None:
            for number in range(calls):
                call(number % copies)

        several()
        self.sync()
        return self._repeat(several, calls, calls * self._round_s(call, min(copies, 16)), "eager")

    def _repeat(
        self, several: Callable[[], None], calls: int, took_s: float, method: Method
    ) -> tuple[Timed, dict[str, float]]:
        fewest, most = _REPLAYS
        n = max(fewest, min(most, math.ceil(self._spend_s / took_s)))
        events = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        for first, last in events:
            first.record()
            several()
            last.record()
        values = self.values()  # while they run
        self.sync()
        taken = [float(first.elapsed_time(last)) * 1e-3 / calls for first, last in events]
        return _timed(taken, calls, method), values

    def _time_host(self, call: Callable[[int], object], copies: int) -> Timed:
        """On the processor there is no queue: the clock around a few calls will do."""
        begun = time.perf_counter()
        call(0)
        once_s = max(time.perf_counter() - begun, 1e-7)
        calls = max(1, min(100, math.ceil(_CPU_CALL_S / once_s)))
        taken = []
        for _ in range(3):
            begun = time.perf_counter()
            for number in range(calls):
                call(number % copies)
            taken.append((time.perf_counter() - begun) / calls)
        return _timed(taken, calls, "eager")

    # --- points -----------------------------------------------------------------------------------------------

    def measure(
        self,
        operator: str,
        shape: dict[str, int],
        dtype: str,
        kernel: str,
        call: Callable[[int], object],
        *,
        copies: int = 1,
        flops: float = 0.0,
        moved_bytes: float = 0.0,
        error: Callable[[], float] | None = None,
        limit: float = 1e-2,
    ) -> Point | None:
        """Check, then time, then keep. What fails is kept among what was skipped, and None returned.

        `error()` computes the relative error of the result against float64; it must stay below `limit`. bf16 keeps
        eight bits, so that results differ by up to 2⁻⁹ of each element from rounding them alone.
        """
        self.check_time()
        what = f"{operator} {dtype} {kernel} {' '.join(f'{name}={size}' for name, size in shape.items())}"
        try:
            off = error() if error is not None else None
            if off is not None and not off < limit:  # NaN is not below
                self.skip(what, f"wrong result: relative error {off:.2g}, {limit:g} allowed")
                return None
            timed, values = self.time(call, copies)
        except OutOfTimeError:
            raise
        except Exception as failure:  # compilers and libraries fail in ways of their own: one point, not the session
            self.skip(what, failure)
            return None
        point = Point(
            operator=operator,
            shape=shape,
            dtype=dtype,
            kernel=kernel if self.cuda else "cpu",
            method=timed.method,
            median_s=timed.median_s,
            p10_s=timed.p10_s,
            p90_s=timed.p90_s,
            n=timed.n,
            calls=timed.calls,
            flops=float(flops),
            bytes=float(moved_bytes),
            error=off,
            sm_clock_mhz=values.get("sm_clock_mhz"),
            power_w=values.get("power_w"),
        )
        self.bench.points.append(point)
        return point

    def skip(self, what: str, why: Exception | str) -> None:
        text = " ".join(str(why).split())[:200] or type(why).__name__
        self.bench.skipped.append(Skipped(what, text))
        if isinstance(why, RuntimeError) and fatal(why):
            self.broken = text
            raise OutOfTimeError from why
        if isinstance(why, RuntimeError) and self.cuda:
            with contextlib.suppress(RuntimeError):
                self.tidy()

    def relative_error(self, found: Any, reference: Any) -> float:
        """‖found − reference‖ / ‖reference‖ in float64; infinite where an element is no number."""
        found, reference = found.double(), reference.double()
        off = float(self.torch.linalg.vector_norm(found - reference) / self.torch.linalg.vector_norm(reference))
        return off if math.isfinite(off) else math.inf


def fatal(error: BaseException) -> bool:
    return any(sign in str(error) for sign in _FATAL)


def _calls(each_s: float, copies: int) -> int:
    """So many that a replay is long enough and all copies have their turn equally often."""
    rounds = max(1, math.ceil(_GRAPH_S / each_s / copies))
    return max(copies, min(rounds, max(1, _MOST_CALLS // copies)) * copies)


def _timed(taken: list[float], calls: int, method: Method) -> Timed:
    ordered = sorted(taken)

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))]

    return Timed(at(0.5), at(0.1), at(0.9), len(ordered), calls, method)
