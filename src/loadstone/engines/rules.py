"""Holds what an engine does in its own way: one class for each engine, an object for each
deployment.

EngineRules has what engines have in common, and what is assumed of an engine without rules of its
own. `vllm.py`, `sglang.py`, `tensorrt_llm.py` and `llama_cpp.py` each say where theirs differs:
memory, scheduling, CUDA graphs, releases, kernels. A new release of an engine touches its file
alone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import msgspec

from loadstone.catalogue.architecture.model import Layers
from loadstone.catalogue.architecture.precision import FORMATS
from loadstone.catalogue.checkpoints import Checkpoint
from loadstone.catalogue.config.visual import override
from loadstone.catalogue.deployment.deployment import Worker
from loadstone.catalogue.visual.visual import Visual
from loadstone.core.errors import InputError
from loadstone.engines.habits import Era, Handover, Offload, PictureHandover, Scheduling
from loadstone.engines.launch import Command, Site, Weights, choose_weights
from loadstone.engines.sharding.adapters import AdapterSlots, adapter_numbers
from loadstone.engines.sharding.kv_cache import Cache, pooled
from loadstone.engines.sharding.limits import BatchLimits, Budget, Version
from loadstone.engines.sharding.pictures import Encoder, encoder_of
from loadstone.engines.sharding.rank import Rank, ranks_of, shape_of

_WITHOUT_NVFP4 = ("Volta", "Turing")
_NOT_IN_MARLIN = ("fp8", "nvfp4", "mxfp4")
"""Weights whose widening kernels want a newer GPU than Volta in vLLM (0.32: from Turing on) and
SGLang."""


_UNSCALED = ("su", "longrope", "llama3")
"""Sorts of RoPE scaling with which `max_position_embeddings` is what comes out (vLLM 0.32,
get_max_model_len)."""


LORA_ARGUMENTS = (
    "enable_lora",
    "lora_modules",
    "lora_target_modules",
    "max_cpu_loras",
    "max_lora_rank",
    "max_loras",
)
"""Arguments of several engines that give a deployment adapters."""
_OF_ADAPTERS = (
    *LORA_ARGUMENTS,
    "device_cache_percent",
    "enable_lora_overlap_loading",
    "fully_sharded_loras",
    "host_cache_size",
    "specialize_active_lora",
)
"""With those that one engine alone has."""


COMMON = frozenset(
    {
        "tp",
        "pp",
        "dp",
        "ep",
        "nodes",
        "attention-dp",
        "kv",
        "block_size",
        "draft",
        "enable_chunked_prefill",
        "enforce_eager",
        "eplb",
        "kv_disk",
        "kv_host",
        "limit_mm_per_prompt",
        "max_model_len",
        "max_seq_len",
        "num_speculative_tokens",
        "prefix_caching",
        "task",
        "two_batch_overlap",
    }
)
"""What a deployment of any engine may have beside the engine's own arguments."""


EPLB_UNEVEN = 0.05
"""With it the fullest of 32 ranks has a tenth more than the mean: 0.11 were measured of DeepSeek-R1
with 288 places, 1.56 without (TensorRT-LLM's blog 4)."""


class _Scaling(msgspec.Struct, frozen=True):
    """Holds RoPE scaling as a config.json has it; what else it says changes no length."""

    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    rope_type: str = ""
    type: str = ""


class _Overrides(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds what of a config.json may be overridden on an engine's command line here: how long a
    context is."""

    rope_parameters: _Scaling | None = None
    rope_scaling: _Scaling | None = None
    max_position_embeddings: int | None = None


NotNegative = Annotated[int, msgspec.Meta(ge=0)]
_Side = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class PictureLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds how many pictures a request may have, and the size in pixels of the one that is tried
    at start, where it is smaller than the largest."""

    count: NotNegative | None = None
    width: _Side | None = None
    height: _Side | None = None


class _PictureLimits(msgspec.Struct, frozen=True):
    """Holds limits of a request's media by their kind."""

    image: NotNegative | PictureLimit = PictureLimit()


class EngineRules:
    """Says how the engine of a deployment behaves. Properties and methods raise InputError where an
    argument of the engine's is no number, or not one of its choices.

    name               its name in a deployment
    sized              its memory and scheduling are known here
    newest             the release that is assumed where the deployment names none
    eras               of releases, newest first; none: all releases have the same coefficients
    cache_dtypes       what it can keep a KV cache in, the one to propose last; none: not known
    refuses_longer     it does not start when told of a longer context than the model's
    overrides          its argument that overrides the model's config.json; empty: it has none here
    marlin             weights of fewer bits than the GPU multiplies are widened within Marlin's
                       kernels
    all_pairs          its kernels for whole experts go over the token-expert pairs of all ranks,
                       see work.py
    further_text       of what its frontend takes for a request, the part that each text after the
                       first takes; vLLM's API server 0.32 has 2.2 ms of one core for one text, and
                       7.2, 16.7 for 16, 64 (benchmarks/results/cpu_engines.md), and others are
                       taken to be alike
    fp8_widening       16-bit FLOPs whose time a byte of an FP8 cache takes to widen; 0: not known
    places_per_batch   each batch of a pipeline has its own part of the places (batch_seqs of
                       EnginePolicy)
    unreadable_weights precisions that its files of weights cannot have
    quantises          it can make FP8 weights of a 16-bit checkpoint when it loads it
    loads_first        it then has the 16-bit ones in the GPU's memory before it does
    needs_context      it does not start where one request of max_model_len does not fit its cache
    spreads_experts    with attention-DP it deals whole experts over all ranks, whatever `ep` says
    step_argument      its argument for the most tokens of a step; empty: it has none
    seqs_argument      its argument for the most requests at once
    priority_argument  its argument, and the value, with which it serves by priority
    static_argument    its argument for the share of memory that weights and cache get, if it lowers
                       that for chunks
    handover           how its prefill workers hand caches to its decode workers; None: they cannot
    encoding           how its workers that encode pictures alone hand them over; None: it has none
    picture_arguments  its arguments for pictures, and the first release that has each
    processor_argument  the one that gives a model's processor other fields; empty: it has none
    turns_pictures     it turns a picture as its file says of the camera
    router_in_image    whether the router between them is in the engine's own image
    """

    name: ClassVar[str] = ""
    sized: ClassVar[bool] = False
    newest: ClassVar[Version] = ()
    eras: ClassVar[tuple[Era, ...]] = ()
    cache_dtypes: ClassVar[tuple[str, ...]] = ()
    refuses_longer: ClassVar[bool] = False
    overrides: ClassVar[str] = ""
    marlin: ClassVar[bool] = False
    all_pairs: ClassVar[bool] = False
    fp8_widening: ClassVar[float] = 0.0
    further_text: ClassVar[float] = 0.15
    places_per_batch: ClassVar[bool] = True
    unreadable_weights: ClassVar[tuple[str, ...]] = ()
    quantises: ClassVar[bool] = False
    loads_first: ClassVar[bool] = False
    needs_context: ClassVar[bool] = False
    spreads_experts: ClassVar[bool] = False
    step_argument: ClassVar[str] = ""
    seqs_argument: ClassVar[str] = ""
    priority_argument: ClassVar[tuple[str, str] | None] = None
    static_argument: ClassVar[str] = ""
    handover: ClassVar[Handover | None] = None
    encoding: ClassVar[PictureHandover | None] = None
    picture_arguments: ClassVar[Mapping[str, Version]] = {}
    processor_argument: ClassVar[str] = ""
    turns_pictures: ClassVar[bool] = False
    router_in_image: ClassVar[bool] = True
    spelled: ClassVar[frozenset[str]] = COMMON

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def of(self, worker: Worker) -> Self:
        """Return the rules of another worker of the same engine."""
        return type(self)(worker)

    @property
    def version(self) -> Version:
        match = re.search(r"[0-9]{1,6}(?:\.[0-9]{1,6}){1,2}", self.worker.engine_version or "")
        return tuple(map(int, match[0].split("."))) if match else self.newest

    @property
    def era(self) -> str:
        """Return the name of the era its version belongs to; without a version, or one that cannot
        be read, the newest."""
        version = self.version
        return next((era.name for era in self.eras if version >= era.since), "*")

    @property
    def model_context(self) -> int | None:
        """Return the longest context that the model was made for, or that its config is overridden
        to. Raises InputError for an override that is not understood."""
        made_for = self.worker.model.max_context_tokens
        text = self.worker.argument(self.overrides)
        if text is None:
            return made_for
        try:
            overrides = msgspec.json.decode(text, type=_Overrides)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise InputError(
                f"--{self.overrides.replace('_', '-')}: {error}; its JSON may have rope_parameters,"
                " rope_scaling and "
                f'max_position_embeddings here, e.g. {{"max_position_embeddings": 65536}}'
            ) from None
        limit = overrides.max_position_embeddings or made_for
        scaling = overrides.rope_parameters or overrides.rope_scaling
        if scaling is None or limit is None or (scaling.rope_type or scaling.type) in _UNSCALED:
            return limit
        scaled = scaling.factor * (scaling.original_max_position_embeddings or limit)
        if not 1 <= scaled < 2**40:
            raise InputError(
                f"--{self.overrides.replace('_', '-')}: factor {scaling.factor:g} makes no context"
            )
        return int(scaled)

    def longer_context(self, context_tokens: int) -> str:
        """Return what would make the model's context so long: the argument, or a config.json."""
        present = self.model_context or context_tokens
        scaling = f'"rope_type":"yarn","factor":{math.ceil(context_tokens / present)}.0'
        scaling += f',"original_max_position_embeddings":{present}'
        if self.overrides:
            return f'{self.overrides}={{"rope_parameters":{{{scaling}}}}}'
        return f'a config.json with "rope_parameters": {{{scaling}}}'

    @property
    def context_limit(self) -> int | None:
        """Return the longest context in tokens: the model's own, or the engine's where it was given
        a shorter one."""
        limits = (self.model_context, self.worker.count("max_model_len", "max_seq_len"))
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def visual(self) -> Visual | None:
        """Return how it takes pictures, as the model's processor does unless it has its own way;
        None: not known, or it takes none. Raises InputError."""
        visual, name = self.worker.model.visual, self.processor_argument
        text = self.worker.argument(name)
        if text is None or visual is None:
            return visual
        try:
            return override(visual, msgspec.json.decode(text, type=dict[str, Any]), name)
        except (msgspec.DecodeError, UnicodeEncodeError):
            example = '{"max_pixels": 1003520}'
            raise InputError(f"{name}: {text!r} is no object; write e.g. {example}") from None

    # --- pictures ---------------------------------------------------------------------------------

    def encoder(self, limits: BatchLimits) -> Encoder | None:
        """Return how it encodes pictures in steps of these limits; None: it takes none, or its
        model's rule or tower is not known."""
        return None if self.most_pictures == 0 else encoder_of(self.visual)

    @property
    def picture_states(self) -> int:
        """Return the states that the largest picture of a prompt has in the cache, for cross
        attention."""
        encoder = self.encoder(self.limits()) if self.worker.model.cross is not None else None
        return 0 if encoder is None else encoder.largest.cross

    @property
    def most_pictures(self) -> int | None:
        """Return the pictures that a request may have, by `limit_mm_per_prompt`; None: any number.
        Raises InputError."""
        return self.picture_limit.count

    @property
    def picture_limit(self) -> PictureLimit:
        """Return what `limit_mm_per_prompt` says of pictures. Raises InputError."""
        text = self.worker.argument("limit_mm_per_prompt")
        try:
            given = msgspec.json.decode(text or "{}", type=NotNegative | _PictureLimits)
        except (msgspec.DecodeError, UnicodeEncodeError):
            raise InputError(
                f"--limit-mm-per-prompt: {text!r} is no limit; write limit_mm_per_prompt=2, or"
                ' {"image": 2, "video": 0}'
            ) from None
        limit = given.image if isinstance(given, _PictureLimits) else given
        return PictureLimit(limit) if isinstance(limit, int) else limit

    @property
    def picture_limits(self) -> str | None:
        """Return `limit_mm_per_prompt` as JSON of an object. Raises InputError."""
        text, _ = self.worker.argument("limit_mm_per_prompt"), self.picture_limit
        return f'{{"image": {text}}}' if text is not None and text.isdecimal() else text

    @property
    def copies_tower(self) -> bool:
        """Return whether each rank has the whole tower, and encodes pictures of its own."""
        return False

    @property
    def processor_cache_bytes(self) -> float | None:
        """Return the bytes of the host's memory that keep prepared pictures; None: not known."""
        return None

    # --- memory -----------------------------------------------------------------------------------

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Return a rank for each pipeline stage, first to last; the last one holds the draft model
        too, if any."""
        worker = self.worker
        stages = ranks_of(
            worker.model,
            shape_of(worker),
            worker.weights_dtype,
            self.kv_dtype,
            self.state_dtype,
            windows=self.keeps_windows,
            drafts=bool(self.draft_layers),
        )
        if worker.task is not None:  # nothing is sampled
            stages = tuple(msgspec.structs.replace(stage, head=False) for stage in stages)
        if self.copies_tower:
            first, parts = stages[0], worker.tp - 1
            copied = worker.model.vision_parameters * parts / worker.tp
            copied *= FORMATS[worker.model.dtype].bytes
            whole = msgspec.structs.replace(first, weights_bytes=first.weights_bytes + copied)
            stages = (whole, *stages[1:])
        drafting = worker.drafting
        if drafting is None:
            return stages
        last, draft = stages[-1], self.of(drafting).ranks[0]
        together = msgspec.structs.replace(
            last,
            weights_bytes=last.weights_bytes + draft.weights_bytes,
            mxfp4_bytes=last.mxfp4_bytes + draft.mxfp4_bytes,
            cache=last.cache + draft.cache,
        )
        return (*stages[:-1], together)

    def limits(self, context_tokens: int | None = None) -> BatchLimits:
        """Return its limits; `context_tokens`: the longest request it is made for; None: the
        longest that the model allows."""
        raise NotImplementedError

    def budget(self, rank: Rank, limits: BatchLimits) -> Budget:
        """Return the memory of one rank in pieces."""
        raise NotImplementedError

    def cache(self, rank: Rank, limits: BatchLimits) -> Cache:
        """Return how the rank's KV cache is divided."""
        return pooled(rank.cache, limits.block_tokens)

    def max_seqs(self, limits: BatchLimits, kv_tokens: int) -> int:
        """Return requests that one replica runs at once, with a cache of so many tokens."""
        return limits.max_seqs

    def whole_prompts(self, context_limit: int) -> int:
        """Return up to which context its memory depends on the context, for a step takes whole
        prompts; 0: it does not."""
        return 0

    def cache_arguments(self, context_tokens: int, requests: int) -> tuple[tuple[str, int], ...]:
        """Return arguments that make the cache large enough, where it is as large as told and not
        as large as the GPU."""
        return ()

    @property
    def most_kv_tokens(self) -> int | None:
        """Return the cache holds no more tokens than that, whatever room there is."""
        return None

    @property
    def kv_dtype(self) -> str:
        """Return what the KV cache is kept in."""
        return self.worker.kv_dtype or self.worker.model.kv_dtype

    @property
    def state_dtype(self) -> str:
        """Return what recurrent states are kept in where the model's config does not say."""
        return "fp32"

    @property
    def keeps_windows(self) -> bool:
        """Return whether layers with a sliding window keep the window alone, and not every
        token."""
        return True

    @property
    def counts_drafts(self) -> bool:
        """Return whether draft layers are loaded before the cache is sized, and have a part of
        it."""
        return True

    @property
    def draft_layers(self) -> tuple[Layers, ...]:
        """Return multi-token-prediction layers that are counted, with a cache of their own: where
        the deployment guesses tokens by them, and not by a draft model beside the checkpoint
        (Worker.drafting).
        """
        worker = self.worker
        by_layers = worker.is_speculative and worker.draft is None
        return worker.model.draft_layers if by_layers and self.counts_drafts else ()

    # --- what it refuses: one line each, with what would work -------------------------------------

    def hardware_refusal(self) -> str | None:
        """Return why it does not run on this GPU, or not with these weights; which other engines do
        is said elsewhere."""
        gpu, weights = self.worker.gpu, self.worker.weights_dtype
        if self.marlin and gpu.architecture == "Volta" and weights in _NOT_IN_MARLIN:
            engine = self.worker.engine
            return (
                f"{engine} has no kernels for {weights} weights on a {gpu.name}; bf16 or int4 would"
                " work"
            )
        return None

    def cache_refusal(self) -> str | None:
        """Return why it cannot keep a KV cache in the deployment's precision, or not on this
        GPU."""
        engine, kv, gpu = self.worker.engine, self.worker.kv_dtype, self.worker.gpu
        dtypes = self.cache_dtypes
        if dtypes and kv not in dtypes:
            return (
                f"{engine} has no KV cache in {kv}; {', '.join(dtypes)} would work"
                f" (kv={dtypes[-1]})"
            )
        if kv == "nvfp4" and (gpu.vendor in ("amd", "intel") or gpu.architecture in _WITHOUT_NVFP4):
            return f"{engine} has no KV cache in nvfp4 on a {gpu.name}; fp8 would work (kv=fp8)"
        return None

    @property
    def offload(self) -> Offload | None:
        """Return how it keeps KV blocks in the host's memory and on disk, where told to; None: it
        does not, here."""
        return None

    def draft_refusal(self) -> str | None:
        """Return why it does not take the draft model."""
        return None

    # --- adapters ---------------------------------------------------------------------------------

    @property
    def has_adapters(self) -> bool:
        """Return whether the deployment was given LoRA adapters, or slots for them."""
        given = self.worker.switch("enable_lora")
        named = any(self.worker.argument(name) is not None for name in _OF_ADAPTERS)
        return named if given is None else given

    @property
    def adapter_slots(self) -> AdapterSlots | None:
        """Return how it keeps LoRA adapters; None: it was not told to have any, or what it does is
        not known here."""
        return None

    @property
    def adapter_paths(self) -> dict[str, str]:
        """Return the adapters that it loads at its start, by name. Raises InputError."""
        found = {}
        for part in filter(None, (self.worker.argument("lora_modules") or "").split("+")):
            name, _, path = part.partition("=")
            if not name or not path:
                raise InputError(
                    f"lora_modules: {part!r} is no NAME=PATH; write e.g."
                    " lora_modules=legal=/adapters/legal+chat=/adapters/chat"
                )
            found[name] = path
        return found

    @property
    def lora_words(self) -> tuple[str, ...] | None:
        """Return the adapters to load as words NAME=PATH; None: there are none."""
        return tuple(map("=".join, self.adapter_paths.items())) or None

    @property
    def lora_targets(self) -> tuple[str, ...] | None:
        """Return the modules that `lora_target_modules` names, with + between them."""
        given = self.worker.argument("lora_target_modules")
        return None if given is None else tuple(given.split("+"))

    def slot_bytes(self, rank: Rank | None = None) -> float:
        """Return the bytes of a slot for an adapter on one rank; None: of all stages."""
        slots, worker = self.adapter_slots, self.worker
        if slots is None:
            return 0.0
        stage = None if rank is None else rank.stage
        numbers = adapter_numbers(worker.model, shape_of(worker), stage, slots.targets, slots.split)
        return slots.rank * numbers * FORMATS[worker.model.dtype].bytes

    def adapters_bytes(self, rank: Rank) -> float:
        """Return the bytes that slots for adapters take of one rank before its cache is sized."""
        slots = self.adapter_slots
        return slots.slots * self.slot_bytes(rank) if slots and slots.allocated else 0.0

    # --- scheduling and steps ---------------------------------------------------------------------

    def scheduling(self, max_batched_tokens: int) -> Scheduling:
        """Return how it schedules by default, in steps of at most so many tokens; see
        scheduler/policy.py."""
        return Scheduling()

    @property
    def batches_under_way(self) -> int:
        """Return how many batches one engine works on at a time: one for each stage of a
        pipeline."""
        return max(1, self.worker.pp)

    @property
    def is_eager(self) -> bool:
        """Return whether decode steps run without CUDA graphs: told so, or too old to have them."""
        return self.worker.switch("enforce_eager") is True

    @property
    def launches_drafts(self) -> bool:
        """Return whether a draft model's passes run without CUDA graphs where decode steps have
        them."""
        return False

    @property
    def graph_tokens(self) -> int:
        """Return the most tokens of a step that has prompts in it and still runs as CUDA graphs; 0:
        none does."""
        return 0

    @property
    def graph_seqs(self) -> int:
        """Return the largest batch of decodes that runs as a CUDA graph; 0: not known, or none
        does."""
        return 0

    @property
    def padded_seqs(self) -> int:
        """Return the only batch of decodes that was captured as a CUDA graph, which smaller ones
        are padded to; 0: there are graphs of many sizes."""
        return 0

    @property
    def uneven_share(self) -> float:
        """Return the standard deviation of the tokens that the ranks of wide experts get, as a part
        of their mean; below 0: as in measured engines, which place experts as they come."""
        return EPLB_UNEVEN if self.worker.switch("eplb") else -1.0

    @property
    def overlaps_halves(self) -> bool:
        """Return whether one half of a batch is computed while the tokens of the other are on their
        way."""
        return self.worker.switch("two_batch_overlap") is True

    def uncovered(self) -> list[str]:
        """Return what of the deployment no measurement covers, in this engine's own ways."""
        return []

    @property
    def latent_launches(self) -> int | None:
        """Return kernels that the host launches for a layer of latent attention; None: as most
        engines do."""
        return None

    # --- how it is started ------------------------------------------------------------------------

    def command(self, site: Site) -> Command:
        """Return its command line for the deployment at `site`. Raises InputError where it cannot
        be had, or not so."""
        engine = self.worker.engine
        raise InputError(
            f"{engine} is not started from here; start it yourself, and give `bench` its URL"
        )

    def router(self, site: Site, workers: Sequence[Site]) -> Command:
        """Return the command line of the router before the `workers` of its pools. Raises
        InputError."""
        raise InputError(f"{self.worker.engine} has no router between pools")

    def model_name(self, site: Site) -> str:
        """Return what the engine is told to load."""
        return self.weights(site).model

    def weights(self, site: Site) -> Weights:
        """Return the checkpoint that it loads, and how it gets the deployment's precision. Raises
        InputError."""
        return choose_weights(self.worker, site, self.reads, self.quantises)

    def reads(self, checkpoint: Checkpoint) -> bool:
        """Return whether it reads what others publish in a precision of their own, on this GPU."""
        other_makers = {"nvidia", "amd"} - {self.worker.gpu.vendor}
        return bool(self.cache_dtypes) and checkpoint.publisher not in other_makers

    def kv_flag(self, names: Mapping[str, str], site: Site) -> str | None:
        """Return how the engine spells the precision of its KV cache; None where that is the
        checkpoint's. Raises InputError."""
        kv = self.worker.kv_dtype
        if kv == self.worker.model.kv_dtype == self.weights(site).kv:
            return None
        if kv not in names:
            raise InputError(
                f"kv={kv}: {self.worker.engine} takes {', '.join(names)}; leave it out for its own"
            )
        return names[self.kv_dtype if self.kv_dtype in names else kv]
