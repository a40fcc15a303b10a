"""Starts Triton Inference Server in front of an engine: `server=triton` in a deployment of
TensorRT-LLM, vLLM or transformers. It serves a folder of models (its model repository), whose files
decide what the engine is told.
"""

from loadstone.catalogue.deployment.deployment import Worker
from loadstone.core.errors import InputError
from loadstone.engines.launch import Command, Site

BACKENDS = ("tensorrt-llm", "vllm")
"""Engines that it runs, of which it tells neither name nor version."""
_PORT = 8000


def command(worker: Worker, site: Site) -> Command:
    """Return `tritonserver` with HTTP on the port, gRPC on the next and metrics on the one after.
    Engines that TensorRT-LLM built (`backend=tensorrt`) are run by its backend in C++, in
    orchestrator mode, where one Triton starts a process for each GPU by MPI; other backends start
    theirs alone.

    Raises InputError without a repository, and for several nodes.
    """
    server = worker.argument("server")
    if server != "triton":
        raise InputError(
            f"server={server}: write server=triton, or leave it out for the engine's own server"
        )
    if site.model is None:
        raise InputError("Triton serves a model repository; name its folder with --model")
    if worker.nodes > 1:
        raise InputError(
            "Triton is started on one node here; start it yourself, and give `bench` its URL"
        )
    built = worker.argument("backend") == "tensorrt"
    port = site.port or _PORT
    return Command(
        [
            *(["mpirun", "--allow-run-as-root", "-n", "1"] if built else []),
            *(site.program or "tritonserver", "--model-repository", site.model),
        ],
        [
            ("grpc-address", None if site.runtime else site.host),
            ("grpc-port", port + 1),
            ("metrics-port", port + 2),
        ],
        notes=(
            (
                "the model repository decides precision, parallelism and cache; the deployment"
                " should say the same"
            ),
        ),
        port=_PORT,
        listening=("http-address", "http-port"),
        ready="/v2/health/ready",
        env=(("TRTLLM_ORCHESTRATOR", "1"),) if built else (),
    )
