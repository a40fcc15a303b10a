"""`loadstone serve-sim`: a deployment's simulated engine over HTTP, in real time; or answers at
fixed times."""

from typing import Annotated

import typer

from loadstone.commands.flags import Acceptance, Profile

Served = Annotated[
    str,
    typer.Argument(
        metavar="DEPLOYMENT",
        help=(
            "what to serve: MODEL[:weights]@N×GPU[/tp8,engine=vllm], e.g. llama-3.1-70b@8xh200; or"
            " fixed times, ttft=30ms,itl=5ms[,per_input_token=20us][,encode=50ms][,thinking=0.5]"
            "[,tool_calls=0.1]"
        ),
    ),
]
Host = Annotated[str, typer.Option(help="address to listen on")]
Port = Annotated[
    int, typer.Option(help="port to listen on; 0: any free port, named in the line on stdout")
]


def serve_sim(
    deployment: Served,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    acceptance: Acceptance = None,
    profile: Profile = None,
    vision: Annotated[
        str,
        typer.Option(
            help="with fixed times: the model by whose rule pictures count [default: none does]"
        ),
    ] = "",
    json: Annotated[
        bool,
        typer.Option("--json", help="changes nothing: the URL is one JSON object on stdout anyway"),
    ] = False,
) -> None:
    """Serve a simulated engine over HTTP. OpenAI-compatible, as fast as the deployment is predicted
    to be, or with every token at a fixed time.
    """
    from loadstone.core.errors import InputError
    from loadstone.measure.simulated_server import FixedLatency, Settings
    from loadstone.measure.simulated_server.__main__ import serve

    if "@" in deployment or "=" not in deployment:
        if vision:
            raise InputError(
                "--vision: the deployment's model says how pictures count; leave it out"
            )
        serve(
            Settings(
                deployment=deployment, host=host, port=port, acceptance=acceptance, profile=profile
            )
        )
        return
    if acceptance is not None or profile is not None:
        raise InputError(
            f"serve-sim {deployment}: fixed times have no --acceptance or --profile; leave them out"
        )
    latency = FixedLatency.parse(
        deployment, "serve-sim", "a deployment, llama-3.1-70b@8xh200, or fixed times, "
    )
    serve(Settings(latency=latency, host=host, port=port, vision=vision))
