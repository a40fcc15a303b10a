"""`loadstone offline`: batches through an engine's own interface, measured or simulated."""

import sys

from loadstone.commands.flags import Explain, Json, Strict, takes
from loadstone.commands.output import show_run
from loadstone.workload.start_options import OfflineOptions


@takes(OfflineOptions)
def offline(
    options: OfflineOptions, json: Json = False, strict: Strict = False, explain: Explain = False
) -> None:
    """Measure offline throughput, without server and client. Whole batches go through the interface
    that vLLM, SGLang, TensorRT-LLM or transformers have in Python; each is a load of an ordinary
    run.
    """
    from loadstone.runs.offline import offline as run

    def tell(note: str) -> None:
        print(f"loadstone: {note}", file=sys.stderr)

    done = "simulated" if options.simulate else "measured"
    show_run(lambda: run(options, tell), done, json, strict, explain)
