"""Random prompts with demanded lengths. What stands in them is prompts.py's business."""

from typing import Any

import msgspec
import numpy as np

from loadstone.core.errors import InputError
from loadstone.workload.draw import GROUPS, LENGTHS, TURNS, Draw, Rows, Workload, roll
from loadstone.workload.lengths import Length


class Synthetic(Workload, msgspec.Struct, frozen=True, tag_field="kind", tag="synthetic"):
    """Random prompts with demanded lengths.

    `prefix_tokens` of each prompt's input tokens are shared with the others of its group, one of
    `prefix_groups` drawn at random. `system_prompt`: they come before the user's own words instead,
    once in each session.
    """

    input: Length
    output: Length
    prefix_tokens: int = 0
    prefix_groups: int = 1
    system_prompt: bool = False

    def __post_init__(self) -> None:
        if (
            self.prefix_tokens
            and not self.system_prompt
            and self.prefix_tokens >= self.input.smallest
        ):
            raise InputError(
                f"--prefix {self.prefix_tokens}: inputs may be as short as {self.input.smallest}"
                " tokens; a prompt must be longer than its shared prefix"
            )

    def describe(self, output: Length | None) -> dict[str, Any]:
        described: dict[str, Any] = msgspec.to_builtins(self)
        return described

    def rows(self, draw: Draw) -> Rows:
        sessions = draw.sessions
        if sessions is None:
            starts_s = draw.starts_s(draw.count(draw.requested))
            return draw.single_rows(starts_s, roll(self._rows(draw, len(starts_s)), draw.warm))
        turns = sessions.turns
        lengths = draw.turn_counts(
            max(1.0, turns.mean),
            lambda measured: turns.draw(draw.generator(TURNS), draw.warm + measured),
        )
        rows = self._rows(draw, int(lengths.sum()))
        return draw.turn_rows(lengths, roll(rows, lengths[: draw.warm].sum()), sessions)

    def _rows(self, draw: Draw, count: int) -> Rows:
        # A stream for each: a longer cell begins like a shorter one.
        inputs, outputs = draw.generator(LENGTHS).spawn(2)
        groups = np.full(count, -1, np.int32)
        if self.prefix_tokens:
            groups = draw.generator(GROUPS).integers(self.prefix_groups, size=count, dtype=np.int32)
        return {
            "input_tokens": self.input.draw(inputs, count),
            "output_tokens": self.output.draw(outputs, count),
            "prefix_group": groups,
            "prefix_tokens": np.full(count, self.prefix_tokens, np.int32),
            "prompt": np.full(count, -1, np.int32),
        }
