"""llama.cpp's rules (llama-server): slots of equal context, whose cache is allocated whole at the
start.

KV = ctx_size tokens, in cells of one token; a slot has ctx_size / parallel of them, and a request
takes a slot. Where nothing is said: 4 slots, the model's own context, 2048 tokens a step
(tools/server/README.md: --parallel, --ctx-size, --batch-size). The cache is f16 whatever the
weights are (--cache-type-k): write kv=fp16 where a model's own type is another.
"""

import msgspec

from loadstone.catalogue.architecture.precision import KV_BYTES
from loadstone.catalogue.visual.visual import Visual
from loadstone.core.errors import InputError
from loadstone.engines.habits import Scheduling
from loadstone.engines.launch import Command, Flags, Site
from loadstone.engines.rules import EngineRules
from loadstone.engines.sharding.adapters import AdapterSlots
from loadstone.engines.sharding.kv_cache import Cache, pooled
from loadstone.engines.sharding.limits import BatchLimits, Budget
from loadstone.engines.sharding.rank import Rank

SLOTS = 4
BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
"""--ubatch-size: what a step is computed in pieces of; its intermediate results are of so many
tokens."""
UNKNOWN_CONTEXT_TOKENS = 4096
"""Where neither the model nor the user names one."""

_IMAGE_TOKENS = {"scaled": (8, 4096), "longest-side": (8, 1024), "budget": (40, 280)}
"""Least and most tokens of a picture where no argument says them, by the model's own rule
(tools/mtmd/clip.cpp)."""
_FLOAT_BYTES, _WINDOW_BYTES = 4, 2
_CELLS = 256


class LlamaCpp(EngineRules):
    name = "llama.cpp"
    further_text = 0.35
    """Its threads for HTTP have 0.42 ms of one core for one text, and 2.7, 9.8 for 16, 64."""
    sized = True
    cache_dtypes = ("fp32", "bf16", "fp16", "int8")
    """Its --cache-type-k; q8_0 is int8 here."""
    unreadable_weights = ("fp8", "nvfp4")
    spelled = frozenset(
        {"tp", "pp", "kv", "lora_modules", "max_model_len", "max_seq_len", "prefix_caching", "task"}
    )

    @property
    def slots(self) -> int:
        return self.worker.count("parallel") or SLOTS

    @property
    def cache_tokens(self) -> int:
        """Return the cells of all slots. `max_model_len`, which is not llama.cpp's word, is one
        slot's."""
        total = self.worker.count("ctx_size")
        slot = self.worker.count("max_model_len", "max_seq_len")
        if total is None and slot is not None:
            total = slot * self.slots
        return total or self.worker.model.max_context_tokens or UNKNOWN_CONTEXT_TOKENS

    @property
    def context_limit(self) -> int | None:
        """Return a context no longer than a slot, where the slots' cache was sized by
        `ctx_size`."""
        limit, total = super().context_limit, self.worker.count("ctx_size")
        if self.worker.task is not None:
            # A text whose vector is asked for is read in one piece, or refused.
            limit = self.piece_tokens if limit is None else min(limit, self.piece_tokens)
        if total is None:
            return limit
        slot = max(1, total // self.slots)
        return slot if limit is None else min(limit, slot)

    @property
    def piece_tokens(self) -> int:
        """Return the tokens of a physical batch."""
        return self.worker.count("ubatch_size") or MICRO_BATCH_TOKENS

    def scheduling(self, max_batched_tokens: int) -> Scheduling:
        if self.worker.task is not None:
            return Scheduling(chunked=False, prefix_cache=False)
        return super().scheduling(max_batched_tokens)

    def limits(self, context_tokens: int | None = None) -> BatchLimits:
        batch_tokens = self.worker.count("batch_size") or BATCH_TOKENS
        if self.worker.task is not None:
            batch_tokens = min(batch_tokens, self.piece_tokens)
        return BatchLimits(block_tokens=1, max_batched_tokens=batch_tokens, max_seqs=self.slots)

    def cache(self, rank: Rank, limits: BatchLimits) -> Cache:
        """Return the cells of the layers that keep all tokens; those of windows are a pool of fixed
        size beside them, but where windows are all that there is."""
        full = [layer for layer in rank.cache if layer.window_tokens is None]
        return pooled(full if self._window_bytes(rank) else rank.cache, limits.block_tokens)

    def _window_bytes(self, rank: Rank) -> float:
        """Return the bytes of the pool of windows; 0 without one.

        Source: llama-kv-cache-iswa.cpp: of each slot a window and a piece (of the slots together
        where `parallel` is left out, which shares one pool), in steps of 256 cells, no more than
        the context, in 16 bits whatever the cache is kept in.
        """
        windows = [layer for layer in rank.cache if layer.window_tokens is not None]
        has_full = any(layer.token_bytes and layer.window_tokens is None for layer in rank.cache)
        if not windows or not has_full or self.worker.switch("swa_full"):
            return 0.0
        shares = self.worker.count("parallel") is None
        pools = 1 if shares else self.slots
        piece = self.piece_tokens
        widening = max(1.0, _WINDOW_BYTES / KV_BYTES[self.kv_dtype])
        total = 0.0
        for layer in windows:
            cells = (layer.window_tokens or 0) * (self.slots if shares else 1) + piece
            cells = min(-(-cells // _CELLS) * _CELLS, self.cache_tokens // pools)
            total += layer.count * layer.token_bytes * widening * cells
        return pools * total

    def budget(self, rank: Rank, limits: BatchLimits) -> Budget:
        """Return logits of every slot and the widest of a piece's intermediate results, in 32 bits;
        a state of every slot, and windows. What the cache leaves is outside: it is never asked for.
        """
        total, model = self.worker.gpu.usable_bytes, self.worker.model
        piece = min(self.piece_tokens, limits.max_batched_tokens)
        width = model.vocab if self.worker.task is None else model.hidden
        activation = float(_FLOAT_BYTES * width * max(limits.max_seqs, piece))
        states = limits.max_seqs * sum(layer.count * layer.state_bytes for layer in rank.cache)
        states += self._window_bytes(rank)
        adapters = len(self.adapter_paths) * self.slot_bytes(rank)
        room = total - rank.weights_bytes - activation - states - adapters
        wanted = self.cache_tokens * self.cache(rank, limits).block_bytes
        outside = max(0.0, room - wanted)
        return Budget(
            total,
            outside,
            rank.weights_bytes,
            activation,
            0.0,
            state_bytes=states,
            adapters_bytes=adapters,
        )

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """Return one slot: all adapters are loaded, taken as of rank 16, and requests of unlike
        ones, or none, are not computed together (its can_batch_with)."""
        if not self.adapter_paths:
            return None
        return AdapterSlots(1, needs_base=True, overlaps=True, idle="used")

    def cache_arguments(self, context_tokens: int, requests: int) -> tuple[tuple[str, int], ...]:
        return ("ctx_size", context_tokens * requests), ("parallel", requests)

    @property
    def visual(self) -> Visual | None:
        """Return how llama-server takes pictures: it bounds their tokens where processors bound
        their pixels or sides, and has fewer tiles (tools/mtmd/clip.cpp; checked at build 11669)."""
        visual = self.worker.model.visual
        if visual is None:
            return None
        numbers = dict(visual.numbers)
        if visual.rule == "canvas":
            numbers |= {"most_tiles": 9, "most_across": 3, "bare": 1}
        elif visual.rule == "deepseek-ocr":
            numbers |= {"most_tiles": 9}
        if visual.rule not in _IMAGE_TOKENS:
            return msgspec.structs.replace(visual, numbers=numbers)
        bounds = _IMAGE_TOKENS[visual.rule]
        area = (numbers["patch"] * numbers["merge"]) ** 2
        pixels = {
            "min_pixels": area * (self.worker.count("image_min_tokens") or bounds[0]),
            "max_pixels": area * (self.worker.count("image_max_tokens") or bounds[1]),
        }
        shape = {"patch": numbers["patch"], "merge": numbers["merge"], "half_up": 1}
        breaks = {"breaks": int(visual.rule == "longest-side")}
        return msgspec.structs.replace(
            visual, rule="scaled", numbers=shape | breaks | pixels, assumed=()
        )

    @property
    def _pooling(self) -> str | None:
        """Return how a vector is made of a text's tokens; None: as the file of an encoder says."""
        if self.worker.task != "embed" or self.worker.model.is_encoder:
            return None
        return "mean" if self.worker.model.pooling is None else "last"

    # --- how it is started ------------------------------------------------------------------------

    def command(self, site: Site) -> Command:
        """Return `llama-server` with a GGUF file."""
        if site.model is None:
            raise InputError("llama.cpp loads a GGUF file; name one with --model")
        if self.worker.tp > 1 and self.worker.pp > 1:
            raise InputError("llama.cpp cuts layers or deals them, not both; leave out tp or pp")
        cache = self.kv_flag({"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "q8_0"}, site)
        flags: Flags = [
            ("alias", site.served_name),
            ("parallel", self.slots),
            ("ctx-size", self.cache_tokens),
            ("batch-size", self.worker.count("batch_size")),
            ("ubatch-size", self.worker.count("ubatch_size")),
            ("embedding", self.worker.task == "embed"),
            ("pooling", self._pooling),
            ("reranking", self.worker.task == "score"),
            ("cache-type-k", cache),
            ("cache-type-v", cache),
            ("no-cache-prompt", self.worker.switch("prefix_caching") is False),
            # Over all GPUs it sees it otherwise deals layers, which is pp.
            ("split-mode", "tensor" if self.worker.tp > 1 else None),
            *(("lora", path) for path in self.adapter_paths.values()),
            # Requests that name no adapter are of the model alone.
            ("lora-init-without-apply", bool(self.adapter_paths)),
            ("image-min-tokens", self.worker.count("image_min_tokens")),
            ("image-max-tokens", self.worker.count("image_max_tokens")),
            ("swa-full", bool(self.worker.switch("swa_full"))),
            ("metrics", True),
            # The old name of --no-ui: old and new versions know it.
            ("no-webui", True),
        ]
        program = [site.program or "llama-server", "--model", site.model]
        return Command(program, flags, port=8080)
