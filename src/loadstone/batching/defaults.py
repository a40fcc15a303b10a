"""How the engine of a deployment schedules by default: the limits from its sizing, the habits from policy.py."""

from __future__ import annotations

from loadstone.batching.policy import EnginePolicy, Order, Speculative
from loadstone.catalogue.deployment import Deployment
from loadstone.errors import InputError
from loadstone.sizing import engine_limits

ACCEPTANCE = 0.7
"""Of a guessed token: an assumption, for it depends on the draft and on the text. `--acceptance` has a better one."""
SGLANG_KEEP_FREE = 0.098
"""The floor of SGLang's new_token_ratio: SGLANG_INIT_NEW_TOKEN_RATIO 0.7 · SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR 0.14."""
_OFF = ("0", "false", "off", "no")


def policy_of(deployment: Deployment, *, acceptance: float = ACCEPTANCE) -> EnginePolicy:
    """The policy of one scheduler of a deployment. Raises InputError where the model does not fit.

    Of a pipeline, whose stages work on `pp` batches at a time, it is the policy of one of these: a pp-th of the
    cache and of the places.
    """
    limits = engine_limits(deployment)
    share = max(1, deployment.pp)
    drafts = deployment.argument("num_speculative_tokens")
    speculative = None
    if drafts is not None and drafts != "0":
        if not drafts.isdigit():
            raise InputError(f"num_speculative_tokens={drafts}: no number of tokens; write e.g. 3")
        speculative = Speculative(int(drafts), acceptance)
    engine = deployment.engine
    order: Order = "prefill-first" if engine == "sglang" else "mixed"
    caching = (deployment.argument("prefix_caching") or "").lower()
    per_decode = 1 if speculative is None else 1 + speculative.draft_tokens
    max_seqs = max(1, limits.max_seqs // share)
    if order == "mixed":
        max_seqs = min(max_seqs, limits.max_batched_tokens // per_decode)
    return EnginePolicy(
        kv_blocks=max(1, limits.kv_blocks // share),
        block_tokens=limits.block_tokens,
        max_batched_tokens=limits.max_batched_tokens,
        max_seqs=max_seqs,
        order=order,
        chunked=engine != "tensorrt-llm",
        prefix_cache=caching not in _OFF,
        keep_free=1.0 if engine == "tensorrt-llm" else SGLANG_KEEP_FREE if engine == "sglang" else 0.0,
        speculative=speculative,
        route="round-robin" if engine in ("sglang", "tensorrt-llm") else "least-busy",
    )
