"""Production traces: when requests came, how long they were, what their prompts shared. trace_lines has the formats.

BurstGPT notes a failed request as one of 0 response tokens: such lines are left out and counted, without an error.
In the azure format two lines of one time and the same lengths are an error: its clock is so fine that the line was
repeated. The clocks of the others are coarse, and requests do come at once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload import trace_lines
from loadstone.workload.files import opened
from loadstone.workload.trace_lines import MAX_TOKENS, BadLine, Format, Rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

_TOO_LONG = "too long for the model"


class Trace(msgspec.Struct, frozen=True, eq=False):
    """n requests in the order of their times. Entry i of every array belongs together.

    time_s         f8 [n], from the first request's timestamp, never falling
    input_tokens   i4 [n], at least 1
    output_tokens  i4 [n], at least 1
    line           i4 [n], the line of the file (from 1; the header of a CSV file is one)
    block_tokens   tokens of a whole block of a prompt; 0: the file says nothing of what prompts share
    block_offsets  i8 [n + 1]: the blocks of request i are block_ids[block_offsets[i]:block_offsets[i + 1]], none or
                   as many as its input takes, of which the last may be cut short
    block_ids      i4: the file's hash_ids numbered anew from 0, in the order of their first use
    prompts        texts to send as they are; None where the file has none
    sha256         of the file as it lies on disk, hexadecimal
    skipped        lines left out: reason to count. Reasons: broken line, not a number, negative number, no input,
                   no answer, no prompt, hash_ids do not fit, too long for the model, unsorted, repeated line
    """

    format: str
    time_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    line: Ints
    block_tokens: int
    block_offsets: Longs
    block_ids: Ints
    prompts: list[str] | None
    sha256: str
    skipped: dict[str, int]

    @property
    def count(self) -> int:
        return len(self.time_s)

    @property
    def duration_s(self) -> float:
        """From time 0 to the last request."""
        return float(self.time_s[-1])

    @property
    def simultaneous(self) -> int:
        """Requests that share their time with the one before."""
        import numpy as np

        return int(np.count_nonzero(np.diff(self.time_s) == 0))

    def cut(self, start_s: float, end_s: float) -> Trace:
        """The requests of start_s ≤ time < end_s. Time 0 is then start_s, so that a wait before the first stays."""
        keep = (self.time_s >= start_s) & (self.time_s < end_s)
        kept = self._take(keep, f"from {start_s:g} s to {end_s:g} s; it goes from 0 to {self.duration_s:g} s")
        return msgspec.structs.replace(kept, time_s=kept.time_s - start_s)

    def sample(self, share: float, seed: int) -> Trace:
        """Each request kept with the probability `share`, independently; times stay. Same seed, same requests."""
        import numpy as np

        keep = np.random.default_rng(seed).random(self.count) < share
        return self._take(keep, f"in a sample of {share:g} of {self.count}; take a larger share or another seed")

    def first(self, count: int) -> Trace:
        import numpy as np

        return self._take(np.arange(self.count) < count, f"among the first {count}; take at least 1")

    def without_longer(self, max_tokens: int) -> Trace:
        """The requests that a model takes, input and output together; the others are counted in `skipped`."""
        keep = self._together() <= max_tokens
        left_out = self.count - int(keep.sum())
        if not left_out:
            return self
        kept = self._take(keep, f"within the {max_tokens} tokens that the model takes in all")
        return msgspec.structs.replace(
            kept,
            # Nobody waits for those that are left out at the beginning.
            time_s=kept.time_s - (kept.time_s[0] - self.time_s[0]),
            skipped=self.skipped | {_TOO_LONG: left_out},
        )

    def check_lengths(self, path: Path, max_tokens: int, count: int) -> None:
        """Raises InputError, with the line, where a model does not take one of the first `count` requests."""
        import numpy as np

        longer = np.flatnonzero(self._together()[:count] > max_tokens)
        if len(longer):
            row = longer[0]
            raise InputError(
                f"{path}, line {self.line[row]}: {self.input_tokens[row]} tokens in and {self.output_tokens[row]} "
                f"out, and the model takes {max_tokens} in all; shorten all with --length-scale, or leave such lines "
                "out with --skip-bad"
            )

    def _together(self) -> Longs:
        import numpy as np

        together: Longs = self.input_tokens.astype(np.int64) + self.output_tokens
        return together

    def scaled_lengths(self, factor: float) -> Trace:
        """Every length × factor, rounded, at least 1: a long trace for a small engine, with the same sharing.

        A request keeps its blocks, and their tokens scale: its input stays within them, so that
        block_tokens · (blocks − 1) < input_tokens ≤ block_tokens · blocks. Raises InputError where a length would
        exceed 2³¹ − 1.
        """
        import numpy as np

        block_tokens = max(1, round(self.block_tokens * factor)) if self.block_tokens else 0
        inputs = np.maximum(1.0, np.rint(self.input_tokens * factor))
        outputs = np.maximum(1.0, np.rint(self.output_tokens * factor))
        blocks = np.diff(self.block_offsets)
        inside = np.clip(inputs, block_tokens * (blocks - 1.0) + 1, block_tokens * blocks)
        inputs = np.where(blocks > 0, inside, inputs)
        longest = max(inputs.max(), outputs.max())
        if not longest <= MAX_TOKENS:
            raise InputError(f"lengths scaled by {factor:g}: the longest would be {longest:g} tokens; scale by less")
        return msgspec.structs.replace(
            self,
            input_tokens=inputs.astype(np.int32),
            output_tokens=outputs.astype(np.int32),
            block_tokens=block_tokens,
        )

    def _take(self, keep: NDArray[np.bool_], which: str) -> Trace:
        import numpy as np

        if not keep.any():
            raise InputError(f"no request of the trace lies {which}")
        blocks = np.diff(self.block_offsets)
        return msgspec.structs.replace(
            self,
            time_s=self.time_s[keep],
            input_tokens=self.input_tokens[keep],
            output_tokens=self.output_tokens[keep],
            line=self.line[keep],
            block_offsets=np.concatenate(([0], np.cumsum(blocks[keep]))).astype(np.int64),
            block_ids=self.block_ids[np.repeat(keep, blocks)],
            prompts=self.prompts and [self.prompts[i] for i in np.flatnonzero(keep)],
        )


def promised_tokens(offsets: Longs, ids: Ints, block_tokens: int, input_tokens: Ints) -> Ints:
    """For each request the tokens at its prompt's start that an earlier one had too: hits of an endless cache.

    Leading blocks in common with any one earlier request × block_tokens, at most input_tokens. i4 [n].
    offsets, ids, block_tokens, input_tokens: as a Trace has them.
    """
    import numpy as np

    blocks, bounds = ids.tolist(), offsets.tolist()
    # A tree of what was asked: (node, block) to node. A block alone will not do: what stands before it counts.
    tree: dict[tuple[int, int], int] = {}
    shared = np.zeros(len(bounds) - 1, np.int64)
    for i, (begin, end) in enumerate(pairwise(bounds)):
        node = 0
        before = len(tree)
        for block in blocks[begin:end]:
            node = tree.setdefault((node, block), len(tree) + 1)
        # Past the first new node all are new.
        shared[i] = end - begin - (len(tree) - before)
    return np.minimum(shared * block_tokens, input_tokens).astype(np.int32)


def read(path: Path, *, skip_bad: bool = False) -> Trace:
    """Read a trace, gzip or not: some µs a line, of which the numbers, blocks and prompt are kept.

    With `skip_bad` lines that cannot be used are left out and counted. Raises InputError, with the line, where the
    file cannot be read, has not the columns of a format, or (without `skip_bad`) a line cannot be used: broken, not
    of numbers or of impossible ones, of hash_ids that do not fit its length, earlier than the line before, or a
    repeated line. Whether a model takes them is asked of what is to be sent: without_longer(), check_lengths().
    """
    with opened(path, trace_lines.GIVE) as (stream, sha256):
        format, rows = trace_lines.rows(path, stream)
        return _read(path, format, rows, sha256, skip_bad)


def _read(path: Path, format: Format, rows: Rows, sha256: str, skip_bad: bool) -> Trace:
    import numpy as np

    # Arrays, not lists: a trace may have millions of lines.
    time_s, lines, inputs, outputs = array("d"), array("i"), array("i"), array("i")
    offsets, block_ids = array("q", [0]), array("i")
    prompts: list[str] = []
    renumbered: dict[int, int] = {}
    skipped: Counter[str] = Counter()
    first = last = 0.0
    block_tokens = 0
    for line, row in rows:
        try:
            request = trace_lines.request(row, format, block_tokens)
            if lines and request.time <= last:
                same = (request.input_tokens, request.output_tokens) == (inputs[-1], outputs[-1])
                _check_order(request.time, last, lines[-1], same and format.name == "azure")
        except BadLine as bad:
            if not skip_bad and not (format.name == "burstgpt" and bad.reason == "no answer"):
                raise InputError(f"{path}, line {line}: {bad}, or leave such lines out with --skip-bad") from None
            skipped[bad.reason] += 1
            continue
        if not lines:
            first = request.time
        last = request.time
        block_tokens = block_tokens or request.block_tokens
        time_s.append((request.time - first) / format.ticks_per_s)
        lines.append(line)
        inputs.append(request.input_tokens)
        outputs.append(request.output_tokens)
        if request.prompt is not None:
            prompts.append(request.prompt)
        block_ids.extend([renumbered.setdefault(id, len(renumbered)) for id in request.hash_ids])
        offsets.append(len(block_ids))
    if not lines:
        left_out = ", ".join(f"{count} left out ({reason})" for reason, count in skipped.items())
        raise InputError(f"{path}: no requests{': ' * bool(left_out)}{left_out}; {trace_lines.GIVE}")
    return Trace(
        format=format.name,
        time_s=np.array(time_s, np.float64),
        input_tokens=np.array(inputs, np.int32),
        output_tokens=np.array(outputs, np.int32),
        line=np.array(lines, np.int32),
        block_tokens=block_tokens,
        block_offsets=np.array(offsets, np.int64),
        block_ids=np.array(block_ids, np.int32),
        prompts=prompts or None,
        sha256=sha256,
        skipped=dict(skipped),
    )


def _check_order(time: float, last: float, last_line: int, repeated: bool) -> None:
    if time < last:
        raise BadLine("unsorted", f"earlier than line {last_line}", "sort the file by time")
    if repeated:
        raise BadLine("repeated line", f"the same as line {last_line}", "leave one of them")
