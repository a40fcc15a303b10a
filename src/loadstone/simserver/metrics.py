"""What /metrics counts."""

from __future__ import annotations

from collections import Counter

from loadstone.simserver.law import MODEL


class Metrics:
    """Counters, as Prometheus text under vLLM's names. The tokens sent before an abort count."""

    def __init__(self) -> None:
        self.running = 0  # requests
        self.prompt_tokens = self.generated_tokens = 0
        self.ended: Counter[str] = Counter()  # requests by finished_reason

    def text(self) -> bytes:
        """The answer to GET /metrics."""
        model = f'engine="0",model_name="{MODEL}"'
        ended = {f'{model},finished_reason="{reason}"': self.ended[reason] for reason in ("stop", "length", "abort")}
        families: list[tuple[str, str, dict[str, int]]] = [
            ("num_requests_running", "gauge", {model: self.running}),
            ("num_requests_waiting", "gauge", {model: 0}),
            ("prompt_tokens_total", "counter", {model: self.prompt_tokens}),
            ("generation_tokens_total", "counter", {model: self.generated_tokens}),
            ("request_success_total", "counter", ended),
        ]
        lines = []
        for name, kind, samples in families:
            lines.append(f"# TYPE vllm:{name} {kind}\n")
            lines += [f"vllm:{name}{{{labels}}} {value:.1f}\n" for labels, value in samples.items()]
        return "".join(lines).encode()
