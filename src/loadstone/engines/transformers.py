"""Starts transformers' own server (`transformers serve`, 5.23): memory and scheduling as of an
engine without rules."""

from loadstone.core.errors import InputError
from loadstone.engines.launch import Command, Flags, Site
from loadstone.engines.rules import EngineRules


class Transformers(EngineRules):
    name = "transformers"
    spelled = frozenset({"block_size", "enforce_eager"})

    def command(self, site: Site) -> Command:
        """Return its command: it serves under the name that it loads, whatever `served_name` says;
        /v1/models lists its cache."""
        weights = self.weights(site)
        if weights.notes:
            raise InputError(
                f"transformers makes no {self.worker.weights_dtype} weights; name such a checkpoint"
            )
        flags: Flags = [
            *weights.flags,
            ("continuous-batching", True),
            ("cb-block-size", self.worker.count("block_size")),
            ("no-cb-use-cuda-graph", self.is_eager),
        ]
        return Command(
            [site.program or "transformers", "serve", weights.model], flags, model=weights.model
        )
