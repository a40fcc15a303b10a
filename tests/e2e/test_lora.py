"""LoRA adapters as a user measures and simulates them: on llama-server, on a simulated vLLM, and on servers
that do not have them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import gguf
import httpx
import numpy as np
import pytest

from conftest import (
    LAST_CHUNK,
    MODEL,
    SSE,
    Ask,
    Json,
    Loadstone,
    ScriptedServer,
    Send,
    answer,
    chunk,
    events,
    whole,
)
from loadstone.core.errors import InputError
from loadstone.core.plan import TrafficClass
from loadstone.core.run_folder import read_plan
from loadstone.engines.table import adapter_field
from loadstone.measure.engines import llama_cpp
from loadstone.measure.engines.launch import serve
from loadstone.measure.engines.process import ServerProcess, free_port
from loadstone.measure.simulated_server import start
from loadstone.measure.wire.request import make_body
from loadstone.runs.adapters import name_adapter
from loadstone.workload.request import RequestSpec

DEPLOYMENT = "llama-3.1-8b@1xh100"


def by_class(cell: Json) -> dict[str, Json]:
    return {part["name"]: part for part in cell["by_class"]}


def write_adapter(path: Path, seed: int) -> None:
    """An adapter of rank 8 of random numbers for the small model's q and v (tiny_gguf.py)."""
    draw = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for layer in range(4):
        for name, outputs in (("attn_q", 256), ("attn_v", 128)):
            halves = {"lora_a": (8, 256), "lora_b": (outputs, 8)}
            for half, shape in halves.items():
                numbers = draw.standard_normal(shape, dtype=np.float32) / np.float32(4)
                writer.add_tensor(f"blk.{layer}.{name}.weight.{half}", numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def llama_server(tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    try:
        program = llama_cpp.find() or llama_cpp.fetch()
    except InputError as error:
        pytest.skip(str(error))
    folder, port = tmp_path_factory.mktemp("llama"), free_port()
    words = llama_cpp.command(program, port=port, slots=4, context_tokens=256)
    for seed, name in enumerate(("legal", "code"), start=1):
        write_adapter(folder / f"{name}.gguf", seed)
        words += ["--lora", str(folder / f"{name}.gguf")]
    words.append("--lora-init-without-apply")
    url = f"http://127.0.0.1:{port}"
    with serve(words, "llama.cpp", log_path=folder / "log", url=url, timeout_s=60.0) as server:
        yield server


CLASSES = (
    "--class", "base,share=2,input=24,output=12",
    "--class", "legal,share=1,input=24,output=12,adapter=legal",
    "--class", "code,share=1,input=24,output=12,adapter=code",
)  # fmt: skip


def test_llama_server_computes_each_class_with_its_adapter(
    loadstone: Loadstone, llama_server: ServerProcess
) -> None:
    outcome = loadstone(
        "bench", llama_server.url, *CLASSES, "--rate", "20", "--requests", "80", "--json"
    )
    assert outcome.code == 0, outcome
    parts = by_class(outcome.cell)
    assert {name: part["requests"]["ok"] for name, part in parts.items()} == {
        "base": 40,
        "legal": 20,
        "code": 20,
    }
    assert not {"adapter_missing", "other_model"} & outcome.findings
    # The adapters change what is answered, each in its own way: bench's body is what does that.
    texts = set()
    for lora in ([], [{"id": 0, "scale": 1.0}], [{"id": 1, "scale": 1.0}]):
        body = {"prompt": " the time of", "max_tokens": 12, "temperature": 0, "lora": lora}
        said = httpx.post(f"{llama_server.url}/v1/completions", json=body, timeout=30)
        texts.add(said.json()["choices"][0]["text"])
    assert len(texts) == 3


def test_an_adapter_that_llama_server_lacks_is_refused(
    loadstone: Loadstone, llama_server: ServerProcess
) -> None:
    text = "tax,share=1,input=24,output=12,adapter=tax"
    outcome = loadstone(
        "bench", llama_server.url, "--rate", "20", "--requests", "8", "--class", text
    )
    assert outcome.code == 2
    assert "adapter tax: the server has loaded no file of this name, and has legal, code" in (
        outcome.err
    )


def test_a_simulated_vllm_serves_its_adapters_by_name(loadstone: Loadstone) -> None:
    deployment = f"{DEPLOYMENT}/max_loras=2,lora_modules=legal=/a+code=/b"
    flags = (*CLASSES, "--rate", "20", "--requests", "80", "--json")
    with start(deployment) as server:
        names = [card["id"] for card in httpx.get(f"{server.url}/v1/models").json()["data"]]
        assert names[1:] == ["legal", "code"]
        measured = loadstone("bench", server.url, *flags)
        unknown = loadstone(
            "bench", server.url, "--rate", "20", "--requests", "40", "--json",
            "--class", "base,share=1,input=24,output=12",
            "--class", "tax,share=1,input=24,output=12,adapter=tax",
        )  # fmt: skip
    assert measured.code == 0, measured
    assert not {"adapter_missing", "other_model"} & measured.findings
    assert all(part["requests"]["error"] == 0 for part in by_class(measured.cell).values())
    # 404: The model `tax` does not exist.
    assert by_class(unknown.cell)["tax"]["unknown_model"] == 20
    assert "adapter_missing" in unknown.findings
    simulated = loadstone("simulate", deployment, *flags)
    assert "lora_guessed" in simulated.findings
    for name, part in by_class(simulated.cell).items():
        ours, theirs = part["tpot_s"]["p50"], by_class(measured.cell)[name]["tpot_s"]["p50"]
        assert ours == pytest.approx(theirs, rel=0.03, abs=1.5e-3)


def test_answers_of_another_model_are_told(loadstone: Loadstone) -> None:
    def base_answers(ask: Ask, send: Send) -> None:
        if ask.path == "/v1/models":
            entry = {"id": MODEL, "owned_by": "vllm", "max_model_len": 4096}
            send(whole("200 OK", json.dumps({"data": [entry]}).encode()))
        elif not ask.json.get("stream"):
            answer(ask, send)
        else:
            send(SSE)
            for event in events(ask):  # the model itself answers, whatever was asked for
                send(chunk(event.replace(b"{", b'{"model": "%b", ' % MODEL.encode(), 1)))
            send(LAST_CHUNK)

    with ScriptedServer(base_answers) as server:
        outcome = loadstone(
            "bench", server.url, "--rate", "100", "--requests", "40", "--json",
            "--class", "base,share=1,input=8,output=4",
            "--class", "legal,share=1,input=9,output=4,adapter=legal",
        )  # fmt: skip
    asked = Counter(ask.json["model"] for ask in server.measured if ask.json.get("stream"))
    assert asked["legal"] >= 20
    assert "adapter_missing" in outcome.findings


@pytest.mark.parametrize(
    ("engine", "endpoint", "said"),
    [
        ("vLLM", "completions", {"model": "legal"}),
        ("SGLang", "chat", {"model": "base:legal"}),
        ("SGLang", "sglang", {"lora_path": "legal"}),
        ("llama.cpp", "completions", {"model": "base", "lora": [{"id": 3, "scale": 1.0}]}),
        (
            "TensorRT-LLM",
            "completions",
            {
                "model": "base",
                "lora_request": {"lora_name": "legal", "lora_int_id": 3, "lora_path": "/legal"},
            },
        ),
    ],
)
def test_each_engine_is_asked_in_its_own_way(engine: str, endpoint: str, said: Json) -> None:
    spec = RequestSpec(endpoint=endpoint, model="base")
    of_class = TrafficClass("law", adapter="legal", adapter_path="/legal")
    named = name_adapter(spec, adapter_field(engine), of_class, "legal", 3)
    body = make_body(named)
    assert body | said == body
    if engine == "TensorRT-LLM":
        with pytest.raises(InputError, match="its path in the file"):
            name_adapter(spec, adapter_field(engine), TrafficClass("law", adapter="a"), "a", 1)


def mix(folder: Path, text: str) -> Path:
    file = folder / "mix.yaml"
    file.write_text(text)
    return file


def test_many_adapters_share_few_slots(loadstone: Loadstone, tmp_path: Path) -> None:
    file = mix(
        tmp_path,
        "classes:\n"
        "  - {name: base, share: 1, input: 64, output: 16}\n"
        "  - {name: users, share: 1, input: 64, output: 16, adapters: 100, popularity: zipf:1.2}\n"
        "  - {name: legal, share: 1, input: 64, output: 16, adapter: legal-r16}\n"
        "adapters: {legal-r16: {rank: 16, targets: all}}\n",
    )
    flags = ("--mix", file, "--rate", "20", "--requests", "300", "--json")
    few = loadstone("simulate", f"{DEPLOYMENT}/version=0.10.2,max_loras=4", *flags)
    assert {"adapters_thrash"} <= few.findings
    assert "lora_guessed" not in few.findings
    plan = read_plan(few.folder)
    assert plan.adapter_names[:2] == ["users-1", "users-2"]
    names = [plan.adapter_names[n - 1] for n in plan.adapter.tolist() if n]
    counts = Counter(name for name in names if name.startswith("users"))
    assert counts.most_common(1)[0][0] == "users-1"
    assert 10 < len(counts) < 100
    many = loadstone("simulate", f"{DEPLOYMENT}/version=0.10.2,max_loras=128", *flags)
    assert "adapters_thrash" not in many.findings
    # Those that find no slot wait, while requests of the model alone pass them.
    waits = {
        name: by_class(few.cell)[name]["ttft_s"]["p99"] / by_class(many.cell)[name]["ttft_s"]["p99"]
        for name in ("base", "users")
    }
    assert waits["users"] > 2 * waits["base"]


def test_an_endless_stream_of_one_adapter_starves_another(loadstone: Loadstone) -> None:
    outcome = loadstone(
        "simulate", f"{DEPLOYMENT}/version=0.10.2,max_loras=1", "--duration", "20s", "--json",
        "--class", "a,slots=8,input=64,output=50,adapter=a",
        "--class", "b,slots=2,input=64,output=50,adapter=b",
    )  # fmt: skip
    assert by_class(outcome.cell)["a"]["requests"]["ok"] > 300
    assert by_class(outcome.cell)["b"]["requests"]["ok"] == 0
    assert {"class_starved", "adapters_thrash"} <= outcome.findings


@pytest.mark.parametrize(
    ("deployment", "text", "said"),
    [
        (DEPLOYMENT, "adapter: legal", "has no slots for any"),
        (f"{DEPLOYMENT}/max_loras=2", "adapter: wide", "raise max_lora_rank"),
        (f"{DEPLOYMENT}/max_loras=2", "adapter: legal, model: m", "adapter and model"),
        (f"{DEPLOYMENT}/max_loras=2", "popularity: zipf", "several adapters"),
        (f"{DEPLOYMENT}/max_loras=2", "adapters: 3, popularity: often", "equal, zipf"),
        (f"{DEPLOYMENT}/max_loras=2", "adapters: 2.5", "whole number"),
    ],
)
def test_adapters_that_cannot_be_have_a_line(
    loadstone: Loadstone, tmp_path: Path, deployment: str, text: str, said: str
) -> None:
    described = "adapters: {wide: {rank: 64}}\n" if "wide" in text else ""
    file = mix(
        tmp_path, f"classes:\n  - {{name: c, share: 1, input: 8, output: 4, {text}}}\n{described}"
    )
    outcome = loadstone("simulate", deployment, "--mix", file, "--rate", "9", "--requests", "9")
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1
