"""Several runs of one command, such as those of alternative deployments, and which is best."""

from typing import Any

import msgspec

from loadstone.core.document import Document
from loadstone.core.plan import Load
from loadstone.core.summary import Summary


class Ranked(msgspec.Struct, kw_only=True, frozen=True):
    """A deployment, at the load at which it was judged.

    deployment             in shorthand
    run_dir                its run; None where it cannot be simulated, and `why` says what hinders
    output_tokens_per_s_per_gpu, low, high   with the 80 % interval, where it is known
    texts_per_s_per_gpu    in their place, of requests for vectors or scores
    ttft_s, tpot_s, e2e_s  medians
    slo_met                None without bounds
    """

    deployment: str
    gpus: int | None = None
    run_dir: str | None = None
    load: Load | None = None
    output_tokens_per_s: float | None = None
    output_tokens_per_s_per_gpu: float | None = None
    texts_per_s: float | None = None
    texts_per_s_per_gpu: float | None = None
    low: float | None = None
    high: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    slo_met: bool | None = None
    why: str | None = None


class RankedRuns(Document, msgspec.Struct, kw_only=True, frozen=True):
    """Several runs; `ranking`: of their deployments, the best first; None: of one deployment."""

    schema: int
    runs: list[Summary]
    ranking: list[Ranked] | None = None

    def document(self) -> dict[str, Any]:
        """Return what the command prints with `--json`."""
        document = {"schema": self.schema, "runs": [run.document() for run in self.runs]}
        if self.ranking is None:
            return document
        return document | {"ranking": msgspec.to_builtins(self.ranking)}
