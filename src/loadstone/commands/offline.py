"""`loadstone offline`: batches through an engine's own interface, measured or simulated."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from loadstone.commands.flags import Json, Out, Profile, Strict, option
from loadstone.commands.output import show_run
from loadstone.core.errors import InputError

_BATCH, _ENGINE, _RUN = "Batch", "Engine", "Run"


def offline(
    deployment: Annotated[str, typer.Argument(help="what runs them: MODEL[:weights]@N×GPU[/tp8,engine=vllm]")],
    batch: Annotated[str, option(_BATCH, "requests given at once; a list: a cell each")] = "32",
    input: Annotated[str, option(_BATCH, "prompt tokens: 512, 8k, uniform:512:1024")] = "512",
    output: Annotated[
        str, option(_BATCH, "output tokens, in the same forms; a list, 800,1600: a run folder each")
    ] = "256",
    range_ratio: Annotated[float, option(_BATCH, "draw lengths uniformly from [ratio·n, n]")] = 1.0,
    warmup: Annotated[int, option(_BATCH, "requests before each batch, their answers cut to 16 tokens, or 0")] = 16,
    seed: Annotated[int, option(_BATCH, "seed of the plan: same seed, same plan")] = 0,
    model: Annotated[
        str | None, option(_ENGINE, "what the engine loads: a path or an id [default: the deployment's model]")
    ] = None,
    argument: Annotated[
        list[str] | None,
        option(_ENGINE, "an argument of the engine's own, passed as it is: NAME=VALUE", "--argument", "-a"),
    ] = None,
    env: Annotated[list[str] | None, option(_ENGINE, "NAME=VALUE in the engine's environment")] = None,
    python: Annotated[
        str | None, option(_ENGINE, "interpreter that has the engine [default: that of its program on PATH]")
    ] = None,
    simulate: Annotated[bool, option(_RUN, "simulate the same batches, without hardware")] = False,
    profile: Profile = None,
    label: Annotated[str | None, option(_RUN, "name of this setup in reports and comparisons")] = None,
    out: Out = Path("runs"),
    json: Json = False,
    strict: Strict = False,
) -> None:
    """Measure offline throughput: whole batches through the interface that vLLM, SGLang, TensorRT-LLM or transformers
    have in Python, without server and client. Each batch is a cell of an ordinary run.
    """
    from loadstone.engines import keywords_named
    from loadstone.engines.launch import read_site
    from loadstone.workload.options import Options, SimulateOptions, options_of

    common: dict[str, Any] = {
        "deployment": deployment,
        "rate": math.inf,
        "requests": batch,
        "input": input,
        "range_ratio": range_ratio,
        "warmup": warmup,
        "seed": seed,
        "label": label,
        "out": out,
        "command": ["loadstone", *sys.argv[1:]],
    }
    outputs = [{**common, "output": each} for each in output.split(",")]

    def measure() -> dict[str, Any]:
        if not all(each["output"].strip() for each in outputs):
            raise InputError(f"--output: a length is missing in {output!r}; write e.g. 800,1600")
        if simulate and (model or argument or env or python):
            raise InputError("--simulate starts no engine; leave --model, --argument, --env and --python out")
        if profile is not None and not simulate:
            raise InputError("--profile: of simulated batches; add --simulate, or leave it out")
        try:
            options_of(common, Options)
        except InputError as error:
            raise InputError(str(error).replace("--requests", "--batch")) from None
        if simulate:
            from loadstone.runs.simulate import simulate as run

            chosen = {"offline": True, "profile": profile}
            return _joined([run(options_of(each | chosen, SimulateOptions)) for each in outputs])
        from loadstone.runs.offline import offline as run_batches

        site = read_site(model=model, argument=argument or (), env=env or ())
        keywords = keywords_named(deployment, site)
        for note in keywords.notes:
            print(f"loadstone: {note}", file=sys.stderr)
        runs = [options_of(each, Options) for each in outputs]
        return _joined(run_batches(runs, keywords, python, dict(site.environment)))

    show_run(measure, "simulated" if simulate else "measured", json, strict)


def _joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    return documents[0] if len(documents) == 1 else {"schema": documents[0]["schema"], "runs": documents}
