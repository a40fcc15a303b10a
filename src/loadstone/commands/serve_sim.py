"""`loadstone serve-sim`: a deployment's simulated engine over HTTP, in real time."""

from __future__ import annotations

from typing import Annotated

import typer

from loadstone.commands.flags import Acceptance, Deployment, Profile

Host = Annotated[str, typer.Option(help="address to listen on")]
Port = Annotated[int, typer.Option(help="port to listen on; 0: any free port, named in the line on stdout")]


def serve_sim(
    deployment: Deployment,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    acceptance: Acceptance = None,
    profile: Profile = None,
    json: Annotated[
        bool, typer.Option("--json", help="changes nothing: the URL is one JSON object on stdout anyway")
    ] = False,
) -> None:
    """Serve a simulated engine over HTTP. OpenAI-compatible, as fast as the deployment is predicted to be."""
    from loadstone.measure.simulated_server import Settings
    from loadstone.measure.simulated_server.__main__ import serve

    serve(Settings(deployment=deployment, host=host, port=port, acceptance=acceptance, profile=profile))
