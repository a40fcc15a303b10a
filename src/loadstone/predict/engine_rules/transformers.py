"""transformers' own server (`transformers serve`): memory and scheduling as of an engine without rules."""

from __future__ import annotations

from loadstone.predict.engine_rules.launch import Command, Site
from loadstone.predict.engine_rules.rules import EngineRules


class Transformers(EngineRules):
    def command(self, site: Site) -> Command:
        """It serves under the name that it loads, whatever `served_name` says; /v1/models lists its cache."""
        self.refuse_simulated()
        model = self.model_name(site)
        program = [site.program or "transformers", "serve", model]
        return Command(program, [("continuous-batching", True)], model=model)
