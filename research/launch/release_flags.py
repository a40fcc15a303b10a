"""Compares the flags that `loadstone launch` prints for a release with that release's own parser.

    python research/launch/release_flags.py FOLDER [--wrong]

FOLDER holds wheels' sources, unpacked: `vllm-0.10.0/vllm/…`, `sglang-0.5.9/sglang/…`. Each option
of the shorthand is launched at each release: what is printed must be in the parser, and its value
among the parser's choices; what is refused must not be.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from loadstone.catalogue.deployment.shorthand import parse_worker
from loadstone.catalogue.engines import ENGINES
from loadstone.core.errors import InputError
from loadstone.engines import launch_of
from loadstone.engines.launch import Site

VALUES = {
    "attention_backend": ("triton", "flashinfer", "fa3"), "decode_attention_backend": ("flashinfer", "fa3"),
    "prefill_attention_backend": ("triton", "fa3"), "distributed_executor_backend": ("mp",), "load_format": ("dummy",),
    "generation_config": ("vllm",), "scheduling_policy": ("priority",), "tokenizer": ("a/b",), "served_model_name": ("m",),
    "structured_output_backend": ("xgrammar",), "grammar_backend": ("xgrammar",), "moe_backend": ("triton",),
    "moe_runner_backend": ("triton",), "moe_a2a_backend": ("deepep",), "schedule_policy": ("fcfs",),
    "cudagraph_mode": ("FULL",), "kv_offload": ("native,kv_host=64gib",), "kv_host": ("64gib",),
    "hicache_write_policy": ("write_back,kv_host=64gib",), "gpu_memory_utilization": ("0.8",), "mem_fraction_static": ("0.8",),
    "json_model_override_args": ('{"a":1}',), "hf_overrides": ('{"a":1}',), "structured_outputs_config": ('{"a":1}',),
    "load_balance_method": ("round_robin",), "ep_dispatch_algorithm": ("static",), "schedule_conservativeness": ("0.5",),
    "cuda_graph_bs": (), "piecewise_cuda_graph_max_tokens": ("2048",), "draft": ("llama-3.2-1b,num_speculative_tokens=3",),
    "server": (), "batching": (), "kv_disk": (), "kv_cache": (), "num_speculative_tokens": (), "block_size": ("32",),
}  # fmt: skip
"""Values to launch an option with, where a number or a switch is none."""
SHAPES = (
    "dp2",
    "tp2",
    "pp2",
    "kv=fp8",
    "eplb",
    "tp16,nodes=2",
    "dp16,nodes=2",
    "dp8,attention-dp,ep8",
)
GPUS = {
    "tp16,nodes=2": 16,
    "dp16,nodes=2": 16,
    "dp2": 2,
    "tp2": 2,
    "pp2": 2,
    "dp8,attention-dp,ep8": 8,
}


class Parser(NamedTuple):
    """Holds the flags of a release's parser, and the values of those that have choices."""

    flags: set[str]
    choices: dict[str, set[str]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    pairs = printed = refused = 0
    wrong: list[str] = []
    for folder in sorted(options.folder.glob("*-[0-9]*/")):
        engine, _, version = folder.name.partition("-")
        known = read_parser(folder / engine, engine)
        for option in deployments(engine):
            text = f"{option}engine={engine},version={version}"
            pairs += 1
            try:
                lines = [rank.argv for rank in launch_of(parse_worker(text), Site(model="m")).ranks]
            except InputError as error:
                refused += 1
                lacking = re.match(
                    r"--([\w.-]+)(?: (\S+))?: \w+ [\d.]+ (?:does not|no longer)", str(error)
                )
                if lacking and not misfits(known, [f"--{lacking[1]}", lacking[2] or ""]):
                    wrong.append(f"{text}: {error}")
                continue
            printed += 1
            wrong += [f"{text}: {flag}" for words in lines for flag in misfits(known, words)]
    print(
        f"{pairs} pairs of release and option: {printed} printed, {refused} refused; {len(wrong)} wrong"
    )
    if options.wrong:
        print("\n".join(dict.fromkeys(wrong)))


def deployments(engine: str) -> Iterator[str]:
    """Yield deployments of one option each, up to their engine's name."""
    known = ENGINES[engine]
    for shape in SHAPES:
        model = "deepseek-v3" if "ep8" in shape else "llama-3.1-8b"
        yield f"{model}@{GPUS.get(shape, 1)}xh200/{shape},"
    for name in dict.fromkeys((*ENGINES[engine].arguments, *known.launch, *known.same)):
        if name in known.same:
            continue
        for value in VALUES.get(name, ("1",)):
            yield f"llama-3.1-8b@1xh100/{name}={value},"


def misfits(known: Parser, words: list[str] | tuple[str, ...]) -> Iterator[str] | list[str]:
    """List the flags of a command that the parser lacks, or whose value is none of its choices."""
    found = []
    for word, value in zip(words, (*words[1:], ""), strict=False):
        if not word.startswith("--"):
            continue
        flag = word.partition("=")[0].partition(".")[0]
        plain = flag if flag in known.flags else flag.replace("--no-", "--", 1)
        if plain not in known.flags:
            found.append(word)
        elif value and known.choices.get(flag) and value not in known.choices[flag]:
            found.append(f"{word} {value}")
    return found


def read_parser(folder: Path, engine: str) -> Parser:
    """Read the flags of a release's sources: words with two dashes, and fields of its settings."""
    names = ("engine/arg_utils.py", "entrypoints/**/cli_args.py", "entrypoints/launchers/*.py")
    if engine == "sglang":
        names = ("srt/server_args.py", "srt/arg_groups/fields/*.py", "srt/arg_groups/choices.py")
    flags, choices, lists = set(), {}, {}
    files = [file for name in names for file in folder.glob(name)]
    trees = [ast.parse(file.read_text("utf-8")) for file in files]
    for statement in (statement for tree in trees for statement in tree.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(
            statement.value, ast.List
        ):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            lists[ast.unparse(target)] = texts(statement.value)
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            flags |= {node.value} if re.fullmatch(r"--[a-z0-9][\w-]*", node.value) else set()
        if isinstance(node, ast.ClassDef) and (engine == "sglang" or "Frontend" in node.name):
            fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
            flags |= {f"--{ast.unparse(field).replace('_', '-')}" for field in fields}
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("add_argument")
            and node.args
        ):
            given = next((word.value for word in node.keywords if word.arg == "choices"), None)
            allowed = lists.get(ast.unparse(given)) if given is not None else None
            allowed = texts(given) if isinstance(given, ast.List) else allowed
            if allowed and isinstance(node.args[0], ast.Constant):
                choices[str(node.args[0].value)] = allowed
    return Parser(flags, choices)


def texts(node: ast.expr) -> set[str]:
    """Return the texts of a list."""
    items = node.elts if isinstance(node, ast.List) else []
    return {str(item.value) for item in items if isinstance(item, ast.Constant)}


if __name__ == "__main__":
    main()
