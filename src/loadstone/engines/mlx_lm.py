"""Starts mlx-lm's server (`mlx_lm.server`, 0.32): memory and scheduling as of an engine without
rules."""

from loadstone.engines.launch import Command, Flags, Site, name_draft
from loadstone.engines.rules import EngineRules


class MlxLm(EngineRules):
    name = "mlx-lm"
    spelled = frozenset({"draft", "kv", "num_speculative_tokens"})

    def command(self, site: Site) -> Command:
        """Return its command: it serves under the name that it loads; /v1/models lists its
        cache."""
        guessed, draft = self.worker.is_speculative, self.worker.draft
        flags: Flags = [
            ("kv-bits", self.kv_flag({"int8": "8"}, site)),
            ("draft-model", name_draft(draft) if draft else None),
            (
                "num-draft-tokens",
                self.worker.count("num_speculative_tokens") if guessed else None,
            ),
        ]
        weights = self.weights(site)
        program = [site.program or "mlx_lm.server", "--model", weights.model]
        return Command(program, flags, notes=weights.notes, port=8080, model=weights.model)
