"""Says what an engine leaves of a GPU for the KV cache, in pieces, and the limits that it schedules
under."""

import msgspec

GIB = 1 << 30
MIB = 1 << 20

Version = tuple[int, ...]


class Budget(msgspec.Struct, frozen=True):
    """Holds the memory of one rank. total = weights + activation + runtime + graphs + outside + kv
    (where that is ≥ 0).

    total_bytes       what the driver reports
    outside_bytes     what the engine leaves alone: 1 − gpu_memory_utilization, or the slack of
                      mem_fraction_static
    weights_bytes     this rank's weights
    activation_bytes  peak of a step's intermediate results
    runtime_bytes     contexts, kernels, collectives' buffers
    graphs_bytes      CUDA graphs, where the engine counts them
    state_bytes       pools of fixed size for linear attention's states, where the engine has them
                      apart
    request_states    states that it keeps there for each running request
    adapters_bytes    slots of LoRA adapters, where they are taken before the cache
    embeddings_bytes  the cache of pictures' embeddings, and tower_bytes: what the tower needs while
                      it encodes the largest picture, where they are taken before the cache
    """

    total_bytes: float
    outside_bytes: float
    weights_bytes: float
    activation_bytes: float
    runtime_bytes: float
    graphs_bytes: float = 0.0
    state_bytes: float = 0.0
    request_states: int = 1
    adapters_bytes: float = 0.0
    embeddings_bytes: float = 0.0
    tower_bytes: float = 0.0

    @property
    def kv_bytes(self) -> float:
        """Return the room for the KV cache; negative where the rest alone does not fit."""
        taken = self.outside_bytes + self.weights_bytes + self.activation_bytes + self.runtime_bytes
        taken += self.graphs_bytes + self.state_bytes + self.adapters_bytes
        taken += self.embeddings_bytes + self.tower_bytes
        return self.total_bytes - taken


class BatchLimits(msgspec.Struct, frozen=True):
    """Holds what an engine decides before it has looked at the memory: tokens and requests of one
    step."""

    block_tokens: int
    max_batched_tokens: int
    max_seqs: int


class EngineLimits(BatchLimits, frozen=True):
    """Holds what a scheduler works under: one data-parallel replica of the engine.

    kv_tokens  that its cache holds; kv_blocks · block_tokens, but for hybrids, see engine_limits()
    kv_blocks  of `block_tokens` tokens each
    """

    kv_tokens: int
    kv_blocks: int
