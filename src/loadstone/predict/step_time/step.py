"""The seconds of one engine step, which is what the simulator asks for; and what a predicted time
consists of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.vectors import Floats
from loadstone.engines import rules_of
from loadstone.predict.step_time.adapters import AdapterTimes, adapter_times
from loadstone.predict.step_time.coefficients import COEFFICIENTS, FRONTEND, INDEX, LIGHT, MOVE
from loadstone.predict.step_time.exchange import is_wide
from loadstone.predict.step_time.formulas import (
    Terms,
    attended_pairs,
    attention_seconds,
    body_parts,
    both,
    head_seconds,
    step_seconds,
    step_terms,
    window_pairs,
)
from loadstone.predict.step_time.operators import Work, idealise, repeat, scale_floors
from loadstone.predict.step_time.pictures import PictureTimes, picture_times
from loadstone.predict.step_time.profile import Profile, profile_of
from loadstone.predict.step_time.work import work_of

_GRID = np.unique(
    np.concatenate([np.arange(1, 65), np.geomspace(64, 131072, 200)]).astype(np.int64)
).astype(float)


OFFLINE_SEQUENCE_S = 3e-6
"""The host's time per sequence of a step where no server streams tokens to clients: what would fit
NVIDIA's batches of near 1,000 through TensorRT-LLM's own interface (docs/accuracy.md, Llama 8B in
FP8; 22 µs in fits of servers)."""
Chunks = Sequence[tuple[int, int]]


class StepModel:
    """Seconds of a step of one scheduler: a data-parallel replica, or one attention rank of an
    attention-DP group (whose experts then see as many tokens from each of the others).

    A pipeline of pp stages runs pp batches at a time; `step_s` is the way of one of them through
    all stages, and the requests of a scheduler are shared among these.

    request_s        seconds of the host per request before the scheduler sees it, of an average
                     prompt
    request_token_s  the same per prompt token (request_s leaves them out)
    text_share       of request_s, what each text of a request after the first takes
    stream_s         seconds from the end of a step until its token is at the client
    window_tokens    of layers that see a window, how wide it is (the mean, by bytes, where they
                     differ)
    window_s         of such layers, seconds per context token of a decode step, up to the window
    """

    def __init__(
        self,
        worker: Worker,
        profile: Profile | None = None,
        *,
        draft_tokens: int = 0,
        values: Floats | None = None,
        work: Work | None = None,
        drafter: StepModel | None = None,
        offline: bool = False,
    ) -> None:
        """Tabulate the times of a deployment. `drafter`: the time of the deployment's draft model,
        where it is not that of these values. `offline`: the engine has batches from its own
        interface, without server and client.
        """
        self.deployment = worker
        self._profile = profile
        self.draft_tokens = draft_tokens
        rules = rules_of(worker)
        self.eager, self.graph_tokens = rules.is_eager, rules.graph_tokens
        self._padded, self._launches_drafts = rules.padded_seqs, rules.launches_drafts
        self.offline, self.text_share = offline, rules.further_text
        # Before experts compute, the host waits for the GPU to tell how many tokens came (DeepEP's
        # normal mode): it launches no kernel ahead.
        self._is_wide = is_wide(worker)
        self.values = self.profile.values() if values is None else values
        if offline:
            self.values = _without_server(self.values)
        self.work = work or work_of(worker)
        drafting = worker.drafting if draft_tokens else None
        self._drafter = drafter
        if drafting is not None and drafter is None:
            self._drafter = StepModel(drafting, profile, values=self.values)
        self.adapters = adapter_times(rules)
        self.pictures = picture_times(rules, None if profile is None else profile.pictures)
        self._tables()

    def _tables(self) -> None:
        # One formula for fits and for this: the deployment at all sizes of the grid at once.
        grid = repeat(self.work, len(_GRID))
        values = np.broadcast_to(self.values, (len(_GRID), len(self.values)))
        alone, met = body_parts(grid, values, _GRID, _GRID)
        self._own, self._met = alone.tolist(), met.tolist()
        self._is_grouped = bool(met.any())
        self._head = head_seconds(grid, values, _GRID).tolist()
        self._grid = _GRID.tolist()
        row = self.values[None, :]
        # All 1 + k tokens of a sequence attend to the context that is read once for them.
        rows = 1 + self.draft_tokens
        verifying = self.work._replace(
            context_flops=rows * self.work.context_flops,
            window_flops=rows * self.work.window_flops,
        )
        arrays = step_terms(verifying, row)
        self._terms = terms = Terms(*(float(getattr(arrays, name)[0]) for name in Terms.__slots__))
        self._window = float(self.work.window[0])
        self.window_tokens = self._window
        self.window_s: float = terms.window
        self.request_s, self.request_token_s, self.stream_s = (
            float(self.values[INDEX[name]]) for name in FRONTEND
        )
        model = self.deployment.model
        drafts = sum(run.count for run in model.draft_layers) or 1
        self._draft = drafts / model.layer_count if self.draft_tokens else 0.0
        drafter = self._drafter
        if drafter is not None:
            # Where steps with prompts alone run without graphs, its passes after the first still
            # do; or none of them does.
            launch = drafter._terms.launch * (self.draft_tokens if self.eager else 1)
            self._draft_launch = drafter._terms.launch if self._launches_drafts else 0.0
            self._terms = replace(
                terms, launch=terms.launch + (0.0 if self._draft_launch else launch)
            )
            theirs = self.draft_tokens * drafter._terms.window
            if self.window_s + theirs > 0:
                read = self._window * self.window_s + drafter._window * theirs
                self.window_s += theirs
                self.window_tokens = read / self.window_s
        self._lines: dict[int, tuple[float, float]] = {}

    @property
    def profile(self) -> Profile:
        """Given, or the deployment's; a model with coefficients of its own needs none."""
        self._profile = self._profile or profile_of(self.deployment)
        return self._profile

    def decode_line(self, decodes: int) -> tuple[float, float]:
        """Return (base_s, s_per_context_token) of a step of `decodes` sequences: base + slope·Σ
        context tokens.

        Layers that see a window are taken as full of it: where Σ context tokens are fewer than the
        windows of all together, it takes window_s less for each that they lack.
        """
        line = self._lines.get(decodes)
        if line is None:
            terms = self._terms
            base, slope = self._tokens_s(decodes, 0, 0.0) + decodes * terms.state, terms.context
            drafter = self._drafter
            if drafter is not None:
                base += self.draft_tokens * decodes * drafter._terms.state
                slope += self.draft_tokens * drafter._terms.context
            if self.eager:
                base = both(base, terms.launch)
            base += decodes * self.window_tokens * self.window_s
            line = self._lines[decodes] = step_seconds(terms, base, decodes, prompts=False), slope
        return line

    def step_s(
        self,
        decodes: int,
        decode_context_tokens: float,
        chunks: Chunks,
        met_tokens: int | None = None,
    ) -> float:
        """Return the seconds of one step: `decodes` sequences of so many context tokens in all, and
        chunks of prompts, each (new tokens, tokens already cached).

        `met_tokens`: of an attention-DP group, how many tokens its ranks bring to the experts in
        this step, on average; None: as many as this one.
        """
        if not chunks and met_tokens is None:
            base, slope = self.decode_line(decodes)
            lacking = max(0.0, decodes * self.window_tokens - decode_context_tokens)
            return base + slope * decode_context_tokens - self.window_s * lacking
        new_tokens = 0
        for new, _ in chunks:
            new_tokens += new
        sequences = decodes + len(chunks)
        attention = self._attention_s(decodes, decode_context_tokens, chunks)
        drafter = self._drafter
        if drafter is not None:
            attention += drafter._attention_s(decodes, decode_context_tokens, chunks)
            later_pass = drafter._attention_s(decodes, decode_context_tokens, ())
            attention += (self.draft_tokens - 1) * later_pass
        kernels = self._tokens_s(decodes, new_tokens, attention, len(chunks), met_tokens)
        if new_tokens + decodes * (1 + self.draft_tokens) > self.graph_tokens:
            launch = self._terms.launch
            kernels = kernels + launch if self._is_wide else both(kernels, launch)
        return step_seconds(self._terms, kernels, sequences, prompts=True)

    def _attention_s(self, decodes: int, decode_context_tokens: float, chunks: Chunks) -> float:
        """Return the seconds of attention in one pass: what its decodes read, and the pairs in its
        prompts."""
        terms, pairs, within = self._terms, 0.0, 0.0
        for new, cached in chunks:
            pairs += attended_pairs(new, cached)
            if terms.window_pair:
                within += window_pairs(new, cached, self._window)
        read = min(decode_context_tokens, decodes * self._window)
        return attention_seconds(
            terms, decode_context_tokens, read, decodes + len(chunks), pairs, within
        )

    def _tokens_s(
        self,
        decodes: int,
        new_tokens: int,
        attention: float,
        chunks: int = 0,
        met_tokens: int | None = None,
    ) -> float:
        tokens = decodes * (1 + self.draft_tokens)
        drafting = 0.0
        drafter = self._drafter
        if drafter is not None:
            # A draft model reads what the large one did, prompts too, then writes its guesses one
            # by one.
            first = drafter._tokens_s(
                decodes, decodes * self.draft_tokens + new_tokens, 0.0, chunks
            )
            following = drafter._tokens_s(decodes + chunks, 0, 0.0)
            if self._draft_launch:
                first, following = (
                    both(first, self._draft_launch),
                    both(following, self._draft_launch),
                )
            drafting = first + (self.draft_tokens - 1) * following
        elif self.draft_tokens and decodes:
            # Each draft token is a pass through the draft layers and a head of its own.
            draft_pass = self._draft * self._body_s(decodes, decodes) + self._interpolate(
                self._head, decodes
            )
            drafting = self.draft_tokens * draft_pass
        met = tokens + new_tokens if met_tokens is None else met_tokens
        rows = tokens
        if 0 < decodes <= self._padded and not new_tokens:
            # A graph of one size computes all its places; those that hold no token go to no expert.
            rows = self._padded * (1 + self.draft_tokens)
        body = self._body_s(rows + new_tokens, met)
        return body + self._interpolate(self._head, rows + chunks) + attention + drafting

    def _body_s(self, own_tokens: int, met_tokens: int) -> float:
        alone = self._interpolate(self._own, own_tokens)
        return alone + self._interpolate(self._met, met_tokens) if self._is_grouped else alone

    def _interpolate(self, table: list[float], tokens: int) -> float:
        """Interpolate linearly between the points of the grid, and beyond its end."""
        if tokens <= 64:
            return table[max(0, tokens - 1)]
        upper = min(bisect_right(self._grid, tokens), len(self._grid) - 1)
        low, high = self._grid[upper - 1], self._grid[upper]
        share = float((tokens - low) / (high - low))
        return table[upper - 1] + (table[upper] - table[upper - 1]) * share

    def draws(self, n: int, seed: int) -> list[StepModel]:
        """Return the deployment with coefficients drawn from the profile's uncertainty."""
        profile, times = self.profile, self.adapters
        values = profile.draws(n, seed)
        drawn = [self.at(coefficients) for coefficients in values]
        if self.pictures is not None:
            moved = np.log(values) - np.array(profile.logarithms)
            made = self.pictures.draws(n, seed, moved, np.array(profile.covariance))
            for model, pictures in zip(drawn, made, strict=True):
                model.pictures = pictures
        if times is None:
            return drawn
        factors = np.exp(times.spread * np.random.default_rng([seed, 1]).standard_normal(n))
        return [
            model.with_adapters(times.at(factor))
            for model, factor in zip(drawn, factors.tolist(), strict=True)
        ]

    def at(self, values: Floats) -> StepModel:
        """Return the deployment with other coefficients."""
        return self._with(values, self.work)

    def eased(self, share: float) -> StepModel:
        """Return the model with a share of the floors of its layers and kernels."""
        return self._with(self.values, scale_floors(self.work, share))

    def with_adapters(self, times: AdapterTimes | None) -> StepModel:
        """Return the model with other times of adapters."""
        changed = copy(self)
        changed.adapters = times
        return changed

    def with_pictures(self, times: PictureTimes | None) -> StepModel:
        """Return the model with other times of pictures."""
        changed = copy(self)
        changed.pictures = times
        return changed

    def _with(self, values: Floats, work: Work) -> StepModel:
        model = StepModel(
            self.deployment,
            self._profile,
            draft_tokens=self.draft_tokens,
            values=values,
            work=work,
            offline=self.offline,
        )
        return model.with_pictures(self.pictures).with_adapters(self.adapters)

    def light(self) -> StepModel:
        """Return the model at the speed of light: all efficiencies 1, all overheads 0."""
        work = idealise(self.work)
        drafter = self._drafter.light() if self._drafter is not None else None
        return StepModel(
            self.deployment,
            draft_tokens=self.draft_tokens,
            values=LIGHT,
            work=work,
            drafter=drafter,
        ).with_adapters(None)


def _without_server(values: Floats) -> Floats:
    changed = values.copy()
    changed[INDEX["sequence_s"]] = min(changed[INDEX["sequence_s"]], OFFLINE_SEQUENCE_S)
    changed[[INDEX[name] for name in FRONTEND]] = 0.0
    return changed


REST = "kernels' own floors"
_PARTS = {
    "products": ("gemm_compute_bf16", "gemm_compute_fp8", "gemm_compute_fp4"),
    "weights read": ("gemm_memory_bf16", "gemm_memory_fp8", "gemm_memory_fp4"),
    "experts' products": ("expert_compute",),
    "experts read": ("expert_memory",),
    "attention": ("attention_decode", "attention_prefill"),
    "floors of products": ("product_s",),
    "quantising": ("quantised_s",),
    "floors of layers": ("layer_s", "expert_layer_s", "latent_layer_s", "linear_layer_s"),
    "collectives": ("collective_s", "collective_link"),
    "host, per step": ("step_s", "prefill_step_s"),
    "host, per sequence": ("sequence_s",),
    "launches": ("launch_s",),
    "before the engine": ("request_s", "request_token_s"),
    "streaming": ("stream_s",),
}


def first_token_s(model: StepModel, prompt_tokens: int, step_tokens: int) -> float:
    """Return the TTFT of one prompt in an idle engine whose steps take at most `step_tokens` of
    it."""
    seconds, cached = model.request_s + model.request_token_s * prompt_tokens + model.stream_s, 0
    while cached < prompt_tokens:
        new = min(prompt_tokens - cached, step_tokens)
        seconds += model.step_s(0, 0, [(new, cached)])
        cached += new
    return seconds


class TimePart(NamedTuple):
    name: str
    seconds: float


def parts_of(model: StepModel, seconds: Callable[[StepModel], float]) -> list[TimePart]:
    """Split `seconds` of a model into its parts, largest first; they add up to it, parts of nothing
    left out.

    A step's time grows in proportion where all its terms do (formulas.py), so it is Σ x·∂t/∂x over
    these terms x (Euler's theorem): by how much it grows, to first order, where a coefficient's
    term does. Terms that meet in a norm share its time by that. What no coefficient scales, the
    floors and token moves of experts' kernels, floors of PCIe, the widening of FP8 caches, is the
    rest.
    """
    total, parts = seconds(model), []
    for name, names in _PARTS.items():
        # A share of a peak works the other way round: time grows as it falls.
        signs = [1.0 if COEFFICIENTS[INDEX[name]].unit.startswith("s") else -1.0 for name in names]
        values = model.values.copy()
        values[[INDEX[name] for name in names]] *= np.exp(MOVE * np.array(signs))
        parts.append(TimePart(name, (seconds(model.at(values)) - total) / MOVE))
    parts.append(TimePart(REST, total - sum(part.seconds for part in parts)))
    return sorted(
        (part for part in parts if part.seconds > 1e-3 * total), key=lambda part: -part.seconds
    )
