"""Where operators are timed: a device, its random data, the time that is left, and what was
measured.

How a time is taken: warm up; capture a CUDA graph of many calls that go round over several copies
of the data, so many that the second-level cache cannot hold them; replay it, each replay between
two events; divide by the calls. So the host's launching is left out, as it is in engines that
capture their steps, and weights come from device memory, as they do there. What cannot be captured
is launched one by one, and says so.
"""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpubench.points import Bench, Device, Method, Moment, Point, Skipped
from loadstone.core.gpu_metrics import NVML_PREFIX
from loadstone.measure.nvml import Gpus

COPIES_OF_L2 = 6
"""Data that calls go round over, in sizes of the second-level cache: some of it survives a round at
2."""


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


class Operation(NamedTuple):
    """What is timed; see Point. `moved_bytes`: its `bytes`."""

    operator: str
    shape: dict[str, int]
    dtype: str = "bf16"
    flops: float = 0.0
    moved_bytes: float = 0.0


class OutOfTimeError(Exception):
    """The budget is spent."""


class Lab:
    """`device` is a torch device: `cuda`, or `cpu` to try the code without a GPU. `gpu`: NVML's
    number of it in `gpus`, where it is told.
    """

    def __init__(
        self,
        bench: Bench,
        device: str,
        budget_s: float,
        *,
        gpus: Gpus | None = None,
        gpu: int | None = None,
        spend_s: float,
    ) -> None:
        import torch

        self.torch: Any = torch
        self.bench = bench
        self.device = torch.device(device)
        self.cuda = self.device.type == "cuda"
        self.broken: str | None = None
        self._begun_s = time.monotonic()
        self._budget_s = budget_s
        self.spend_s = spend_s
        self._gpus = gpus
        self._gpu = gpu
        self.generator = torch.Generator(device=self.device).manual_seed(0)

    # --- time and state ---------------------------------------------------------------------------

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
        return {
            each.name.removeprefix(NVML_PREFIX): each.value
            for each in self._gpus.read()
            if each.gpu == self._gpu
        }

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

    # --- data -------------------------------------------------------------------------------------

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

    # --- points -----------------------------------------------------------------------------------

    def measure(
        self,
        operation: Operation,
        kernel: str,
        call: Callable[[int], object],
        *,
        copies: int = 1,
        error: Callable[[], float] | None = None,
        limit: float = 1e-2,
    ) -> Point | None:
        """Check, then time, then keep. What fails is kept among what was skipped, and None
        returned.

        `error()` computes the relative error of the result against float64; it must stay below
        `limit`. bf16 keeps eight bits, so that results differ by up to 2⁻⁹ of each element from
        rounding them alone.
        """
        self.check_time()
        sizes = " ".join(f"{name}={size}" for name, size in operation.shape.items())
        what = f"{operation.operator} {operation.dtype} {kernel} {sizes}"
        try:
            off = error() if error is not None else None
            if off is not None and not off < limit:  # NaN is not below
                self.skip(what, f"wrong result: relative error {off:.2g}, {limit:g} allowed")
                return None
            times, values = timed(self, call, copies)
        except OutOfTimeError:
            raise
        # compilers and libraries fail in ways of their own: one point, not the session
        except Exception as failure:
            self.skip(what, failure)
            return None
        return self.keep(operation, kernel if self.cuda else "cpu", times, values, off)

    def keep(
        self,
        operation: Operation,
        kernel: str,
        times: Timed,
        values: Mapping[str, float],
        error: float | None = None,
    ) -> Point:
        """`values`: what telemetry said while it ran."""
        point = Point(
            operator=operation.operator,
            shape=operation.shape,
            dtype=operation.dtype,
            kernel=kernel,
            **times._asdict(),
            flops=float(operation.flops),
            bytes=float(operation.moved_bytes),
            error=error,
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

    def relative_error(self, result: Any, reference: Any) -> float:
        """‖result − reference‖ / ‖reference‖ in float64; infinite where an element is no number."""
        result, reference = result.double(), reference.double()
        off = float(
            self.torch.linalg.vector_norm(result - reference)
            / self.torch.linalg.vector_norm(reference)
        )
        return off if math.isfinite(off) else math.inf


# --- the device -----------------------------------------------------------------------------------


def describe_device(device: str, gpus: Gpus | None) -> Device:
    """`device`: a torch device that is there."""
    import torch

    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    if device == "cpu":
        return Device(
            name="cpu",
            memory_bytes=0,
            multiprocessors=torch.get_num_threads(),
            l2_bytes=0,
            software=versions,
        )
    properties = torch.cuda.get_device_properties(device)
    with contextlib.suppress(ImportError):
        import triton

        versions["triton"] = str(triton.__version__)
    versions["cuda"] = str(torch.version.cuda)
    versions["cudnn"] = str(torch.backends.cudnn.version())
    number = number_of(device, gpus)
    limits = gpus.describe()[number] if gpus is not None and number is not None else None
    return Device(
        name=properties.name,
        memory_bytes=int(properties.total_memory),
        multiprocessors=int(properties.multi_processor_count),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)) or 64 * 1024 * 1024,
        capability=f"{properties.major}.{properties.minor}",
        driver=gpus.driver if gpus is not None else None,
        power_limit_w=limits.power_limit_w if limits is not None else None,
        sm_clock_max_mhz=limits.sm_clock_max_mhz if limits is not None else None,
        software=versions,
    )


def number_of(device: str, gpus: Gpus | None) -> int | None:
    """NVML's number of torch's `device`; None where it cannot be told."""
    import torch

    if gpus is None or device == "cpu":
        return None
    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", "")).lower()
    # Without a UUID the one GPU that there is will be it.
    if not uuid:
        return 0 if torch.cuda.device_count() == 1 else None
    uuids = [each.uuid.removeprefix("GPU-").lower() for each in gpus.describe()]
    return uuids.index(uuid) if uuid in uuids else None


# --- how a time is taken --------------------------------------------------------------------------


def timed(
    lab: Lab, call: Callable[[int], object], copies: int = 1
) -> tuple[Timed, dict[str, float]]:
    """Seconds of `call(i)`, i going round over the copies; and the GPU's own word meanwhile."""
    if not lab.cuda:
        return _on_processor(call, copies), {}
    _several(call, copies, 2 * copies if copies < 8 else copies + 2)
    lab.sync()
    calls = _calls(_round_s(lab, call, copies), copies)
    try:
        graph = _capture(lab, call, copies, calls)
        took_s = _run_s(lab, graph.replay)
        if took_s < _GRAPH_S / 2 and calls < _MOST_CALLS:
            # Launched one by one it had waited for the host.
            calls = _calls(took_s / calls, copies)
            graph = _capture(lab, call, copies, calls)
            took_s = _run_s(lab, graph.replay)
    except RuntimeError as error:
        if fatal(error):
            raise
        lab.sync()
        return _eager(lab, call, copies, calls)
    result = _repeat(lab, graph.replay, calls, took_s, "graph")
    graph.reset()
    return result


def launched(lab: Lab, call: Callable[[], object], calls: int) -> Timed:
    """Seconds of the host for one call: what launching costs while the GPU keeps up with it."""
    for _ in range(2):
        call()
    lab.sync()
    taken = []
    for _ in range(_REPLAYS[0]):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append(time.perf_counter() - begun)
        lab.sync()
    return quantiles(taken, calls, "host")


def _run_s(lab: Lab, run: Callable[[], object]) -> float:
    """Seconds that the GPU takes for what `run` gives it to do."""
    events = [record(lab, run)]
    lab.sync()
    return max(elapsed_s(events)[0], 1e-7)


def record(lab: Lab, run: Callable[[], object]) -> tuple[Any, Any]:
    """Run it between two events, whose times are known after a `sync`."""
    first, last = (lab.torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    run()
    last.record()
    return first, last


def _round_s(lab: Lab, call: Callable[[int], object], copies: int) -> float:
    """About how long one call takes, launched one by one."""
    calls = min(copies, 16)
    return _run_s(lab, lambda: _several(call, copies, calls)) / calls


def _capture(lab: Lab, call: Callable[[int], object], copies: int, calls: int) -> Any:
    cuda, driver = lab.torch.cuda, lab.torch._C
    graph, stream, pool = cuda.CUDAGraph(), cuda.current_stream(), cuda.graph_pool_handle()
    try:
        with cuda.graph(graph, pool=pool):
            _several(call, copies, calls)
    except RuntimeError:
        # Where ending a capture fails too, torch stays on the stream that it captured, and until
        # 2.12 its allocator in the capture: from then on it would give no memory back.
        cuda.set_stream(stream)
        with contextlib.suppress(
            AttributeError, RuntimeError
        ):  # it was ended, or this torch names it otherwise
            driver._cuda_endAllocateToPool(cuda.current_device(), pool)
            driver._cuda_releasePool(cuda.current_device(), pool)
        raise
    graph.replay()
    lab.sync()
    return graph


def _eager(
    lab: Lab, call: Callable[[int], object], copies: int, calls: int
) -> tuple[Timed, dict[str, float]]:
    _several(call, copies, calls)
    lab.sync()
    took_s = calls * _round_s(lab, call, copies)
    return _repeat(lab, lambda: _several(call, copies, calls), calls, took_s, "eager")


def _repeat(
    lab: Lab, several: Callable[[], object], calls: int, took_s: float, method: Method
) -> tuple[Timed, dict[str, float]]:
    fewest, most = _REPLAYS
    n = max(fewest, min(most, math.ceil(lab.spend_s / took_s)))
    events = [record(lab, several) for _ in range(n)]
    values = lab.values()  # while they run
    lab.sync()
    return quantiles(elapsed_s(events), calls, method), values


def _on_processor(call: Callable[[int], object], copies: int) -> Timed:
    """On the processor there is no queue: the clock around a few calls will do."""
    begun = time.perf_counter()
    call(0)
    once_s = max(time.perf_counter() - begun, 1e-7)
    calls = max(1, min(100, math.ceil(_CPU_CALL_S / once_s)))
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        _several(call, copies, calls)
        taken.append(time.perf_counter() - begun)
    return quantiles(taken, calls, "eager")


def fatal(error: BaseException) -> bool:
    return any(sign in str(error) for sign in _FATAL)


def _calls(each_s: float, copies: int) -> int:
    """So many that a replay is long enough and all copies have their turn equally often."""
    rounds = max(1, math.ceil(_GRAPH_S / each_s / copies))
    return max(copies, min(rounds, max(1, _MOST_CALLS // copies)) * copies)


def _several(call: Callable[[int], object], copies: int, calls: int) -> None:
    for number in range(calls):
        call(number % copies)


def elapsed_s(events: Iterable[tuple[Any, Any]]) -> list[float]:
    """Seconds between the two events of each pair."""
    return [float(first.elapsed_time(last)) * 1e-3 for first, last in events]


def quantiles(taken: list[float], calls: int, method: Method) -> Timed:
    """Of repeats of `calls` calls, which took so many seconds each."""
    ordered = sorted(each / calls for each in taken)

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))]

    return Timed(at(0.5), at(0.1), at(0.9), len(ordered), calls, method)
