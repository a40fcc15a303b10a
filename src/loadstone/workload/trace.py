"""Production traces: when requests came, how long they were, what their prompts shared."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadstone.core.calls import take_lists
from loadstone.core.errors import InputError
from loadstone.core.plan import Blocks, Load, Plan, rank_by_first_use
from loadstone.core.vectors import Bools, Floats, Ints32, Ints64
from loadstone.workload.arrivals import default_requests
from loadstone.workload.draw import Draw, Rows, ServerLimits, Workload, text_rows
from loadstone.workload.files import BadLine, RequestFile, open_requests
from loadstone.workload.lengths import Length
from loadstone.workload.trace_lines import (
    GIVE,
    MAX_TOKENS,
    TIME_DIGITS,
    Lines,
    TraceFormat,
    read_csv,
    read_json,
    read_request,
)

_SECONDS_PER_S, _DOUBTED_PER_S = 100, 500
"""Requests/s in the mean, times read as ms: from here on those with fractions are seconds, and
whole ones doubtful. Traces of whole services have a few to some tens.
"""
_TOO_LONG = "too long for the model"


class Trace(Workload, msgspec.Struct, frozen=True, eq=False):
    """n requests in the order of their times. Entry i of every array belongs together.

    time_s         f8 [n], from the first request's timestamp, never falling
    input_tokens   i4 [n], at least 1
    output_tokens  i4 [n], at least 1
    line           i4 [n], the line of the file (from 1; the header of a CSV file is one)
    block_tokens   tokens of a whole block of a prompt; 0: the file says nothing of what prompts
                   share
    block_offsets  i8 [n + 1]: the blocks of request i are
                   block_ids[block_offsets[i]:block_offsets[i + 1]], none or as many as its input
                   takes, of which the last may be cut short
    block_ids      i4: the file's hash_ids numbered anew from 0, in the order of their first use
    prompts        texts to send as they are; None where the file has none
    sha256         of the file as it lies on disk, hexadecimal
    skipped        lines left out: reason to count. Reasons: broken line, not a number, negative
                   number, no input, no answer, no prompt, no class, hash_ids do not fit, too long
                   for the model, unsorted, repeated line
    doubted_per_s  requests/s where that is so many that the times may be of another unit
    changed        window_s, sample, length_scale, lengthened: how what is sent is not as it stands
                   in the file
    class_names    classes of traffic that the file names, in the order of their first use
    class_numbers  i4 [n], the place of each request's class among them; None: it names none
    """

    format: str
    time_s: Floats
    input_tokens: Ints32
    output_tokens: Ints32
    line: Ints32
    block_tokens: int
    block_offsets: Ints64
    block_ids: Ints32
    prompts: list[str] | None
    sha256: str
    skipped: dict[str, int]
    doubted_per_s: float | None = None
    changed: dict[str, Any] = {}
    class_names: tuple[str, ...] = ()
    class_numbers: Ints32 | None = None

    @property
    def count(self) -> int:
        return len(self.time_s)

    @property
    def duration_s(self) -> float:
        """Seconds from time 0 to the last request."""
        return float(self.time_s[-1])

    @property
    def simultaneous(self) -> int:
        """The number of requests that share their time with the one before."""
        return int(np.count_nonzero(np.diff(self.time_s) == 0))

    def describe(self, output: Length | None) -> dict[str, Any]:
        described: dict[str, Any] = {
            "kind": "trace",
            "format": self.format,
            "sha256": self.sha256,
            "requests": self.count,
            "skipped": self.skipped,
            "simultaneous": self.simultaneous,
        }
        if self.doubted_per_s is not None:
            described["doubted_per_s"] = self.doubted_per_s
        return described | self.changed

    def length(self, load: Load) -> int | None:
        return self.count if load.process == "trace" else None

    def loads(self, time_scales: Sequence[float], max_concurrency: int | None) -> list[Load]:
        """Make the loads that replay it at its own times, multiplied by each of these."""
        return replay_loads(self.time_s, time_scales, max_concurrency)

    def rows(self, draw: Draw) -> Rows:
        """Make the trace's rows in their order, behind the warm-up's, which are as long as its
        first but have prompts of their own.

        `line`: the trace's row of each, −1 for the warm-up. Raises InputError where the load takes
        more requests than the trace has: only a closed loop that runs by time goes round.
        """
        load, requested = draw.load, draw.requested
        if load.process == "trace":
            count = self.count if requested is None else requested
            starts_s = draw.lead_in(self.time_s[:count] * load.time_scale)
        else:
            if load.is_closed and load.duration_s is not None:
                requested = self.count
            elif requested is None and not (load.duration_s or load.is_burst or load.profile):
                requested = min(self.count, default_requests(load))
            count = draw.count(requested)
            starts_s = draw.starts_s(count)
        if count > self.count:
            raise InputError(
                f"{load.label}: {count:,} requests, and the trace has {self.count:,}; send fewer"
                " (--requests, --duration), or replay more of it"
            )
        source = np.concatenate([np.arange(draw.warm) % self.count, np.arange(count)])
        rows = text_rows(
            source if self.prompts else np.full(len(source), -1), self.output_tokens[source]
        )
        if not self.prompts:
            rows["input_tokens"] = self.input_tokens[source]
        rows["line"] = np.concatenate([np.full(draw.warm, -1), np.arange(count)])
        return draw.single_rows(starts_s, rows)

    def finish(self, rows: Rows, draw: Draw) -> dict[str, Any]:
        contents: dict[str, Any] = {}
        if self.prompts:
            ranks, used, _ = rank_by_first_use(rows["prompt"])
            texts = [self.prompts[number] for number in used.tolist()]
            contents = {"prompt": ranks, "prompts": texts}
        if self.block_tokens:
            blocks = Blocks.whole(self.block_tokens, self.block_offsets, self.block_ids)
            contents["blocks"] = blocks.take(rows["line"])
        return contents

    def fit(self, limits: ServerLimits) -> Trace:
        kept = self
        if limits.max_tokens is not None and limits.skip_bad:
            kept = kept.without_longer(limits.max_tokens)
        if limits.requests is not None:
            if limits.requests > kept.count:
                raise InputError(
                    f"--requests {limits.requests:,}: the trace has {kept.count:,}; ask for no more"
                )
            kept = kept.first(limits.requests)
        lengthened = int((kept.input_tokens < limits.min_input_tokens).sum())
        if not lengthened:
            return kept
        return msgspec.structs.replace(
            kept,
            input_tokens=kept.input_tokens.clip(min=limits.min_input_tokens),
            changed=kept.changed | {"lengthened": lengthened},
        )

    def check(self, plan: Plan, limits: ServerLimits, name: str) -> None:
        if limits.max_tokens is not None:
            # The warm-up is as long as the trace's first requests.
            cells = range(len(plan.cells))
            warm = [plan.warmup_count(cell) for cell in cells]
            sent = max(max(warm[cell], len(plan.rows(cell)) - warm[cell]) for cell in cells)
            self.check_lengths(name, limits.max_tokens, sent)

    def check_lengths(self, name: str, max_tokens: int, count: int) -> None:
        """Raise InputError, with the line, where a model does not take one of the first `count`
        requests."""
        longer = np.flatnonzero(self._total_tokens()[:count] > max_tokens)
        if len(longer):
            row = longer[0]
            raise InputError(
                f"{name}, line {self.line[row]}: {self.input_tokens[row]} tokens in and"
                f" {self.output_tokens[row]} out, and the model takes {max_tokens} in all;"
                " shorten all with --length-scale, or leave such lines out with --skip-bad"
            )

    def cut(self, start_s: float, end_s: float) -> Trace:
        """Keep the requests of start_s ≤ time < end_s. Time 0 becomes start_s: a wait before the
        first stays."""
        keep = (self.time_s >= start_s) & (self.time_s < end_s)
        which = f"from {start_s:g} s to {end_s:g} s; it goes from 0 to {self.duration_s:g} s"
        selected = self._take(keep, which, window_s=(start_s, end_s))
        return msgspec.structs.replace(selected, time_s=selected.time_s - start_s)

    def sample(self, share: float, seed: int) -> Trace:
        """Keep each request with the probability `share`, independently; times stay. Same seed,
        same requests."""
        keep = np.random.default_rng(seed).random(self.count) < share
        which = f"in a sample of {share:g} of {self.count}; take a larger share or another seed"
        return self._take(keep, which, sample=share)

    def of_class(self, name: str) -> Trace:
        """Keep the requests of a class of traffic; times stay."""
        number = self.class_names.index(name) if name in self.class_names else -1
        assert self.class_numbers is not None  # noqa: S101 - else it has no class_names
        return self._take(self.class_numbers == number, f"in class {name}")

    def first(self, count: int) -> Trace:
        return self._take(
            np.arange(self.count) < count, f"among the first {count}; take at least 1"
        )

    def without_longer(self, max_tokens: int) -> Trace:
        """Keep the requests that a model takes, input and output together; the others are counted
        in `skipped`."""
        keep = self._total_tokens() <= max_tokens
        left_out = self.count - int(keep.sum())
        if not left_out:
            return self
        selected = self._take(keep, f"within the {max_tokens} tokens that the model takes in all")
        return msgspec.structs.replace(
            selected,
            # Nobody waits for those that are left out at the beginning.
            time_s=selected.time_s - (selected.time_s[0] - self.time_s[0]),
            skipped=self.skipped | {_TOO_LONG: left_out},
        )

    def _total_tokens(self) -> Ints64:
        return np.asarray(self.input_tokens.astype(np.int64) + self.output_tokens)

    def scaled_lengths(self, factor: float) -> Trace:
        """Scale every length by a factor, rounded, at least 1: a long trace for a small engine,
        with the same sharing.

        A request keeps its blocks, and their tokens scale: its input stays within them, so that
        block_tokens · (blocks − 1) < input_tokens ≤ block_tokens · blocks. Raises InputError where
        a length would exceed 2³¹ − 1.
        """
        block = max(1, round(self.block_tokens * factor)) if self.block_tokens else 0
        inputs = np.maximum(1.0, np.rint(self.input_tokens * factor))
        outputs = np.maximum(1.0, np.rint(self.output_tokens * factor))
        blocks = np.diff(self.block_offsets)
        inside = np.clip(inputs, block * (blocks - 1.0) + 1, block * blocks)
        inputs = np.where(blocks > 0, inside, inputs)
        longest = max(inputs.max(), outputs.max())
        if not longest <= MAX_TOKENS:
            raise InputError(
                f"lengths scaled by {factor:g}: the longest would be {longest:g} tokens; scale by"
                " less"
            )
        return msgspec.structs.replace(
            self,
            input_tokens=inputs.astype(np.int32),
            output_tokens=outputs.astype(np.int32),
            block_tokens=block,
            changed=self.changed | {"length_scale": factor},
        )

    def _take(self, keep: Bools, which: str, **changed: Any) -> Trace:
        """Select requests; `changed` says how. Raises InputError where there are none."""
        rows = np.flatnonzero(keep)
        if not len(rows):
            raise InputError(f"no request of the trace lies {which}")
        offsets, block_ids = take_lists(self.block_offsets, self.block_ids, rows)
        return msgspec.structs.replace(
            self,
            time_s=self.time_s[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            line=self.line[rows],
            block_offsets=offsets,
            block_ids=block_ids,
            prompts=self.prompts and [self.prompts[row] for row in rows],
            changed=self.changed | changed,
            class_numbers=None if self.class_numbers is None else self.class_numbers[rows],
        )


def replay_loads(
    times_s: Floats, time_scales: Sequence[float], max_concurrency: int | None
) -> list[Load]:
    """Make the loads of requests at times of their own, multiplied by each of these. Raises
    InputError."""
    loads = []
    for scale in time_scales:
        if not 0 < scale < math.inf:
            raise InputError(
                f"--time-scale {scale:g}: must be above 0; 0.1 replays ten times as fast"
            )
        span_s = float(times_s[-1] - times_s[0]) * scale
        rate = (len(times_s) - 1) / span_s if span_s else float(len(times_s))
        load = Load("rate", max(rate, 1e-9), "trace", max_concurrency=max_concurrency)
        loads.append(msgspec.structs.replace(load, time_scale=scale))
    return loads


def read(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a trace, gzip or not: some µs a line, of which the numbers, blocks and prompt are kept.

    With `skip_bad` lines that cannot be used are left out and counted. Raises InputError, with the
    line, where the file cannot be read, has not the columns of a format, or (without `skip_bad`) a
    line cannot be used: broken, not of numbers or of impossible ones, of hash_ids that do not fit
    its length, earlier than the line before, or a repeated line. Whether a model takes them is
    asked of what is to be sent: without_longer(), check_lengths().
    """
    with open_requests(path, GIVE, skip_bad=skip_bad) as file:
        format, rows = read_csv(file) if file.kind == "text" else read_json(file)
        return _read(file, format, rows)


def _read(file: RequestFile, format: TraceFormat, rows: Lines) -> Trace:
    # Arrays, not lists: a trace may have millions of lines.
    time_s, lines, inputs, outputs = array("d"), array("i"), array("i"), array("i")
    offsets, block_ids, classes = array("q", [0]), array("i"), array("i")
    prompts: list[str] = []
    names: dict[str, int] = {}
    renumbered: dict[int, int] = {}
    first = last = 0.0
    fractions = False
    block_tokens = 0
    for line, row in rows:
        try:
            request = read_request(row, format, block_tokens)
            if lines:
                _check_class(request.traffic_class, names)
            if lines and request.time <= last:
                same = (request.input_tokens, request.output_tokens) == (inputs[-1], outputs[-1])
                _check_order(request.time, last, lines[-1], same and format.name == "azure")
        except BadLine as bad:
            failed = format.name == "burstgpt" and bad.reason == "no answer"
            file.leave_out(line, bad, expected=failed)
            continue
        if not lines:
            first = request.time
        last = request.time
        # The same whenever the trace began, though a late clock has fewer digits after its point.
        since = round(last - first, TIME_DIGITS)
        fractions = fractions or since % 1 != 0
        block_tokens = block_tokens or request.block_tokens
        time_s.append(since / format.ticks_per_s)
        lines.append(line)
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        if request.prompt is not None:
            prompts.append(request.prompt)
        classes.append(names.setdefault(request.traffic_class, len(names)))
        block_ids.extend([renumbered.setdefault(id, len(renumbered)) for id in request.hash_ids])
        offsets.append(len(block_ids))
    if not lines:
        file.refuse_empty("requests")
    times = np.array(time_s, np.float64)
    per_s = (len(times) - 1) / times[-1] if format.name == "mooncake" and times[-1] > 0 else 0.0
    if fractions and per_s >= _SECONDS_PER_S:
        times *= format.ticks_per_s
    return Trace(
        format=format.name,
        doubted_per_s=per_s if per_s >= _DOUBTED_PER_S and not fractions else None,
        time_s=times,
        input_tokens=np.array(inputs, np.int32),
        output_tokens=np.array(outputs, np.int32),
        line=np.array(lines, np.int32),
        block_tokens=block_tokens,
        block_offsets=np.array(offsets, np.int64),
        block_ids=np.array(block_ids, np.int32),
        prompts=prompts or None,
        sha256=file.sha256,
        skipped=dict(file.skipped),
        class_names=tuple(names) if "" not in names else (),
        class_numbers=np.array(classes, np.int32) if "" not in names else None,
    )


def _check_class(name: str, names: dict[str, int]) -> None:
    if bool(name) == ("" in names):
        problem = "'class' is missing" if not name else "'class', which the first line has not"
        raise BadLine("no class", problem, "give all lines one, or none")


def _check_order(time: float, last: float, last_line: int, repeated: bool) -> None:
    if time < last:
        raise BadLine("unsorted", f"earlier than line {last_line}", "sort the file by time")
    if repeated:
        raise BadLine("repeated line", f"the same as line {last_line}", "leave one of them")


# --- the values of a line -------------------------------------------------------------------------
