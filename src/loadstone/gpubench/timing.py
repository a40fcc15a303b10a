"""How a time is taken.

Warm up; capture a CUDA graph of many calls that go round over several copies of the data, so many that the
second-level cache cannot hold them; replay it, each replay between two events; divide by the calls. So the host's
launching is left out, as it is in engines that capture their steps, and weights come from device memory, as they do
there. What cannot be captured is launched one by one, and says so.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from loadstone.gpubench.points import Method

if TYPE_CHECKING:
    from loadstone.gpubench.lab import Lab

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


def timed(lab: Lab, call: Callable[[int], object], copies: int = 1) -> tuple[Timed, dict[str, float]]:
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
    found = _repeat(lab, graph.replay, calls, took_s, "graph")
    graph.reset()
    return found


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
        # Where ending a capture fails too, torch stays on the stream that it captured, and until 2.12 its allocator
        # in the capture: from then on it would give no memory back.
        cuda.set_stream(stream)
        with contextlib.suppress(AttributeError, RuntimeError):  # it was ended, or this torch names it otherwise
            driver._cuda_endAllocateToPool(cuda.current_device(), pool)
            driver._cuda_releasePool(cuda.current_device(), pool)
        raise
    graph.replay()
    lab.sync()
    return graph


def _eager(lab: Lab, call: Callable[[int], object], copies: int, calls: int) -> tuple[Timed, dict[str, float]]:
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
