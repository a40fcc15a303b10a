"""Where operators are timed: a device, its random data, the time that is left, and what was found."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from loadstone.core.nvml import PREFIX, Gpus
from loadstone.gpubench.points import Bench, Moment, Point, Skipped
from loadstone.gpubench.timing import Timed, fatal, timed

COPIES_OF_L2 = 6
"""Data that calls go round over, in sizes of the second-level cache: some of it survives a round at 2."""


class OutOfTimeError(Exception):
    """The budget is spent."""


class Lab:
    """`device` is a torch device: `cuda`, or `cpu` to try the code without a GPU. `gpu`: NVML's number of it in
    `gpus`, where it is told.
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
            found, values = timed(self, call, copies)
        except OutOfTimeError:
            raise
        except Exception as failure:  # compilers and libraries fail in ways of their own: one point, not the session
            self.skip(what, failure)
            return None
        kernel = kernel if self.cuda else "cpu"
        return self.keep(operator, shape, dtype, kernel, found, values, flops, moved_bytes, off)

    def keep(
        self,
        operator: str,
        shape: dict[str, int],
        dtype: str,
        kernel: str,
        found: Timed,
        values: dict[str, float] | None = None,
        flops: float = 0.0,
        moved_bytes: float = 0.0,
        error: float | None = None,
    ) -> Point:
        """`values`: the GPU's own word while it ran."""
        told = values or {}
        point = Point(
            operator=operator,
            shape=shape,
            dtype=dtype,
            kernel=kernel,
            **found._asdict(),
            flops=float(flops),
            bytes=float(moved_bytes),
            error=error,
            sm_clock_mhz=told.get("sm_clock_mhz"),
            power_w=told.get("power_w"),
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
