"""What /metrics counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadstone.measure.simulated_server.engine import Engine
    from loadstone.predict.simulator.run import State


class Metrics:
    """Counters, as Prometheus text under vLLM's names. The tokens sent before an abort count."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.running = 0  # requests
        self.prompt_tokens = self.generated_tokens = 0
        self.ended: Counter[str] = Counter()  # requests by finished_reason

    def text(self, engine: Engine | None = None) -> bytes:
        """The answer to GET /metrics; of a deployment's engine each scheduler's own, as vLLM numbers them."""
        model = f'engine="0",model_name="{self._model}"'
        ended = {f'{model},finished_reason="{reason}"': self.ended[reason] for reason in ("stop", "length", "abort")}
        families: list[tuple[str, str, dict[str, float]]] = [
            ("prompt_tokens_total", "counter", {model: self.prompt_tokens}),
            ("generation_tokens_total", "counter", {model: self.generated_tokens}),
            ("request_success_total", "counter", dict(ended)),
        ]
        if engine is None:
            families.insert(0, ("num_requests_running", "gauge", {model: self.running}))
            families.insert(1, ("num_requests_waiting", "gauge", {model: 0}))
        else:
            families += self._of_engine(engine)
        lines = []
        for name, kind, samples in families:
            lines.append(f"# TYPE vllm:{name} {kind}\n")
            lines += [f"vllm:{name}{{{labels}}} {float(value)!r}\n" for labels, value in samples.items()]
        return "".join(lines).encode()

    def _of_engine(self, engine: Engine) -> list[tuple[str, str, dict[str, float]]]:
        states = engine.states()

        def each(of: Callable[[State], float]) -> dict[str, float]:
            return {f'engine="{number}",model_name="{self._model}"': of(state) for number, state in enumerate(states)}

        return [
            ("num_requests_running", "gauge", each(lambda state: state.running)),
            ("num_requests_waiting", "gauge", each(lambda state: state.waiting)),
            ("kv_cache_usage_perc", "gauge", each(lambda state: state.used_tokens / engine.kv_tokens)),
            ("num_preemptions_total", "counter", each(lambda state: state.preemptions)),
            ("prefix_cache_queries_total", "counter", each(lambda state: state.cache_queries)),
            ("prefix_cache_hits_total", "counter", each(lambda state: state.cache_hits)),
        ]
