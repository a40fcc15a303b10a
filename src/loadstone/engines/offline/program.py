"""Batches through an engine's own interface in Python. The engine's interpreter runs this file by
itself, so it imports nothing of Loadstone:

    python program.py SOCKET

On the Unix socket come JSON lines: first {"engine", "model", "arguments"}, answered by {"version",
"vocabulary"} once the engine is loaded; then batches {"prompts": [[token ids]], "lengths": [answer
tokens]}, each answered by {"start_s", "end_s", "answers": [{"input_tokens", "output_tokens",
"first_s", "last_s"}]}, seconds of the monotonic clock, null where the engine does not say. What the
engine prints is its log. An exception ends the program, with its traceback.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answered = Iterator[tuple[int, int, "float | None", "float | None"]]
Generate = Callable[[list[list[int]], list[int]], Answered]
Loaded = tuple[str, int, Generate]
"""The engine's package, the size of its vocabulary, and what answers a batch."""


def load_vllm(model: str, arguments: dict[str, Any]) -> Loaded:
    import vllm

    engine = vllm.LLM(model=model, disable_log_stats=False, **arguments)

    def generate(prompts: list[list[int]], lengths: list[int]) -> Answered:
        sampling = [
            vllm.SamplingParams(max_tokens=length, ignore_eos=True, temperature=0)
            for length in lengths
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        for answer in engine.generate(requests, sampling, use_tqdm=False):
            # Its engine's process stamps them, by the clock that all processes of a machine share.
            first_s = getattr(answer.metrics, "first_token_ts", 0.0) or None
            last_s = getattr(answer.metrics, "last_token_ts", 0.0) or None
            yield len(answer.prompt_token_ids), len(answer.outputs[0].token_ids), first_s, last_s

    return "vllm", engine.llm_engine.model_config.get_vocab_size(), generate


def load_sglang(model: str, arguments: dict[str, Any]) -> Loaded:
    import sglang

    engine = sglang.Engine(model_path=model, **arguments)

    def generate(prompts: list[list[int]], lengths: list[int]) -> Answered:
        sampling = [
            {"max_new_tokens": length, "ignore_eos": True, "temperature": 0} for length in lengths
        ]
        for answer in engine.generate(input_ids=prompts, sampling_params=sampling):
            usage = answer["meta_info"]
            yield usage["prompt_tokens"], usage["completion_tokens"], None, None

    return "sglang", engine.tokenizer_manager.model_config.vocab_size, generate


def load_tensorrt_llm(model: str, arguments: dict[str, Any]) -> Loaded:
    import tensorrt_llm

    engine = tensorrt_llm.LLM(model=model, **arguments)

    def generate(prompts: list[list[int]], lengths: list[int]) -> Answered:
        sampling = [
            tensorrt_llm.SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        for answer in engine.generate(requests, sampling, use_tqdm=False):
            yield len(answer.prompt_token_ids), len(answer.outputs[0].token_ids), None, None

    return "tensorrt_llm", engine.tokenizer.vocab_size, generate


def load_transformers(model: str, arguments: dict[str, Any]) -> Loaded:
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = transformers.AutoModelForCausalLM.from_pretrained(
        model, **{"dtype": "auto", **arguments}
    )
    network = network.to(device).eval()

    def generate(prompts: list[list[int]], lengths: list[int]) -> Answered:
        # One static batch: shorter prompts are padded in front, and all answers take as long as the
        # longest.
        width, tokens = max(map(len, prompts)), max(lengths)
        ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            whole = network.generate(
                input_ids=torch.tensor(ids, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        answered = len(whole[0].tolist()) - width
        for prompt, length in zip(prompts, lengths, strict=True):
            yield len(prompt), min(length, answered), None, None

    return "transformers", network.config.get_text_config().vocab_size, generate


def main() -> None:
    # No module of the engine's lies beside this file.
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(sys.argv[1])
        lines = channel.makefile("rb")

        def send(message: object) -> None:
            channel.sendall(json.dumps(message).encode() + b"\n")

        first = json.loads(lines.readline())
        engines = {
            "vllm": load_vllm,
            "sglang": load_sglang,
            "tensorrt-llm": load_tensorrt_llm,
            "transformers": load_transformers,
        }
        package, vocabulary, generate = engines[first["engine"]](first["model"], first["arguments"])
        send({"version": importlib.metadata.version(package), "vocabulary": vocabulary})
        for line in lines:
            batch = json.loads(line)
            start_s = time.monotonic()
            answers = list(generate(batch["prompts"], batch["lengths"]))
            end_s = time.monotonic()
            names = "input_tokens", "output_tokens", "first_s", "last_s"
            send(
                {
                    "start_s": start_s,
                    "end_s": end_s,
                    "answers": [dict(zip(names, answer, strict=True)) for answer in answers],
                }
            )
    # Engines leave threads and processes that would be waited for; the guard ends these.
    os._exit(0)


if __name__ == "__main__":
    main()
