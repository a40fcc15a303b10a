"""A load worker on another machine, as its owner sees it: a process that takes orders on stdin like
any worker.

It is run as `python -m loadstone.measure.client.ray_worker`. The worker itself is in a Ray actor
(ray_actor.py); this process passes orders and reports on, and copies the worker's journal into the
run folder as it grows. Times are made those of the clock at the other side. The offset is half-way
through the quickest of some round trips (as NTP has it, RFC 5905, section 8): it is wrong by half
that trip at most. It is taken once for all times of the run, so that the worker's records are of
one clock, and again before each step, to see how far the clocks drift.
"""

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from loadstone.core.errors import DiskFullError, InputError, LoadstoneError
from loadstone.core.run_folder import HEADER_BYTES, JournalWriter, journal_schema, read_header
from loadstone.core.signals import SIGNALS
from loadstone.core.version import __version__
from loadstone.measure.client.protocol import (
    Failed,
    FromWorker,
    Job,
    Leave,
    MessageReader,
    Ready,
    Step,
    StepDone,
    ToWorker,
    decode_order,
    decode_report,
    report,
)

_START_S = 60.0
_ANSWER_S = 30.0
_POLL_S = 0.5
"""The interval at which a worker journals. Each answer of Ray takes one to two milliseconds of CPU
on either side."""
_OWNER_POLL_S = 0.1
_TRIPS = 25
_CLOSE_NS = 500_000
"""A clock known so well is asked no further: a quarter of what makes a finding of it
(clocks_apart)."""


class RayWorker:
    """One worker of a Ray cluster. `run()` returns when it has ended: its exit code."""

    def __init__(self, job: Job, out: int) -> None:
        """`out`: the pipe to the owner. Raises LoadstoneError where no worker can be had."""
        import ray

        from loadstone.measure.client.ray_actor import ProcessHost

        self._ray, self._job, self._out = ray, job, out
        folder = Path(job.folder)
        options = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor: Any = ray.remote(**options)(ProcessHost).remote()
        version, place, python = self._ask("about", within_s=_START_S)
        if version != __version__:
            raise InputError(
                f"--ray: a machine has Loadstone {version}, this one {__version__}; install the"
                " same"
            )
        self._ask("put", "plan.parquet", (folder / "plan.parquet").read_bytes())
        self._ask("start", [python, "-P", "-m", "loadstone.measure.client.worker"])
        self._offsets = dict.fromkeys(("stdout", "journal-*.arrow", "stderr"), 0)
        self._offset_ns, self._within_ns = self._measure_offset(_TRIPS)
        self._apart_ns = self._within_ns
        self._journal = JournalWriter(folder, job.worker)
        self._frames = self._lines = b""
        shifted = msgspec.structs.replace(
            job, folder=place, origin_ns=job.origin_ns + self._offset_ns, ray=None
        )
        self._tell([shifted])

    def run(self, orders: MessageReader[ToWorker]) -> int:
        listening = [0]
        while True:
            if select.select(listening, (), (), _POLL_S)[0]:
                received = orders.read()
                if received is None:
                    listening, received = [], [Leave()]
                for order in received:
                    if isinstance(order, Step):
                        order.start_ns += self._offset_ns
                self._tell(received)
            pieces, code = self._ask("read", self._offsets)
            for name, piece in zip(self._offsets, pieces, strict=True):
                self._offsets[name] += len(piece)
            reports, journal, log = pieces
            if log:
                os.write(2, log)
            self._keep(journal)
            *lines, self._lines = (self._lines + reports).split(b"\n")
            for line in lines:
                report(self._here(decode_report(line)), self._out)
            if code is not None:
                if code < 0:
                    died = f"worker {self._job.worker} died on its machine (signal {-code})"
                    report(Failed(died), self._out)
                return 1 if code else 0

    def close(self) -> None:
        self._journal.close()
        self._ask("close")

    def _ask(self, name: str, *values: Any, within_s: float = _ANSWER_S) -> Any:
        return self._ray.get(getattr(self._actor, name).remote(*values), timeout=within_s)

    def _tell(self, orders: list[ToWorker]) -> None:
        if orders:
            self._ask("tell", b"".join(msgspec.json.encode(order) + b"\n" for order in orders))

    def _measure_offset(self, least: int) -> tuple[int, int]:
        """The clock there − the one here, ns, and by how much that may be wrong, from `least` round
        trips or more."""
        trips = []
        for _ in range(_TRIPS):
            begun_ns = time.monotonic_ns()
            remote_ns = self._ask("now_ns")
            ended_ns = time.monotonic_ns()
            middle_ns = (begun_ns + ended_ns) // 2
            trips.append(((ended_ns - begun_ns + 1) // 2, remote_ns - middle_ns))
            if len(trips) >= least and min(trips)[0] < _CLOSE_NS:
                break
        within_ns, offset_ns = min(trips)
        return offset_ns, within_ns

    def _here(self, message: FromWorker) -> FromWorker:
        if isinstance(message, Ready):
            message.clock_offset_ns, message.clock_within_ns = self._offset_ns, self._within_ns
        elif isinstance(message, StepDone):
            for name in ("start_ns", "issue_end_ns", "end_ns"):
                setattr(message, name, getattr(message, name) - self._offset_ns)
            offset_ns, within_ns = self._measure_offset(1)
            self._apart_ns = max(self._apart_ns, abs(offset_ns - self._offset_ns) + within_ns)
            message.clocks_apart_ns = self._apart_ns
        return message

    def _keep(self, piece: bytes) -> None:
        """Append to the journal here what of the one there is whole. Raises DiskFullError."""
        import pyarrow as pa

        self._frames += piece
        position = 0
        while len(self._frames) - position >= HEADER_BYTES:
            number, length, _ = read_header(self._frames, position)
            end = position + HEADER_BYTES + length
            if end > len(self._frames):
                break
            if number:  # 0 is the schema, which the journal here has
                frame = self._frames[position + HEADER_BYTES : end]
                batch = pa.ipc.read_record_batch(frame, journal_schema())
                if not self._journal.write(batch):
                    raise DiskFullError(
                        f"{self._job.folder}: disk full; the run ends early and what was measured"
                        " is kept"
                    )
            position = end
        self._frames = self._frames[position:]


def _connect(address: str) -> None:
    """Raises InputError."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    connected = threading.Event()
    threading.Thread(target=_end_with_owner, args=(connected,), daemon=True).start()
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level="FATAL", configure_logging=False
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"--ray {address}: no Ray cluster is reached from here ({reason}); give the head's"
            " host:port, on a machine where ray start joined the cluster"
        ) from error
    finally:
        connected.set()


def _end_with_owner(connected: threading.Event) -> None:
    """Ray may try for minutes to connect, and hears nothing meanwhile: without an owner, this
    process just ends."""
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    while not connected.wait(_OWNER_POLL_S):
        if any(events & select.POLLHUP for _, events in poll.poll(0)):
            os._exit(2)


def main() -> int:
    # Libraries print what they like; the pipe to the owner is for messages alone.
    pipe = os.dup(1)
    os.dup2(2, 1)
    orders = MessageReader(0, decode_order)
    job = orders.first()
    if not isinstance(job, Job) or job.ray is None:
        return 2
    try:
        _connect(job.ray)
        # After Ray, which has handlers of its own: the owner decides when a run ends.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        worker = RayWorker(job, pipe)
        code = worker.run(orders)
        worker.close()
    except LoadstoneError as error:
        report(Failed(str(error), isinstance(error, DiskFullError)), pipe)
        return 1
    except Exception as error:
        # Ray's errors have no common base but this one; the journal has what came before.
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        print(f"worker {job.worker}: {error!r}", file=sys.stderr)
        lost = f"lost in the Ray cluster ({type(error).__name__}: {reason})"
        report(Failed(f"worker {job.worker}: {lost}"), pipe)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
