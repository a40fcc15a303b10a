"""InferenceX's runs of DeepSeek-R1 in 2026, from a dump of its database to rows that `loadstone
validate` reads.

    python benchmarks/inferencex.py INFERENCEX.csv > benchmarks/inferencex_points.csv

The rows are of the fixture of InferenceX-app (github.com/vngcloud/InferenceX-app at 7fe6d62ad57a,
Apache-2.0). What they do not say of the launch is in the scripts of
github.com/SemiAnalysisAI/InferenceX (Apache-2.0; benchmarks/single_node/dsr1_*.sh, as they were in
May 2026): arguments that change what a scheduler does, what a token costs, or how many tokens are
guessed. Left out are engines without rules here (ATOM), instances that prefill and decode apart,
rows whose image is not stored, and rows that the dump itself calls suspect.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

SOURCE = "InferenceX 2026"
COLUMNS = (
    "source", "deployment", "input_len", "output_len", "arrival", "arrival_value", "num_prompts", "ttft_ms_median",
    "tpot_ms_median", "output_tok_s", "mode", "range_ratio", "acceptance", "stat", "fold", "notes",
)  # fmt: skip
ACCEPTANCE = "0.5"
"""Of a guessed token. Prompts are random words in the model's chat template, and DeepSeek's answers
to them are hard to guess: the values that meet the TPOT of each of 41 runs with drafts have
quartiles of 0.41 and 0.54, whatever GPU, length and number of guesses, and their median without any
one of the GPUs is 0.45 to 0.49."""
ENGINES = {"sglang": "sglang", "trt": "tensorrt-llm"}
Row = Mapping[str, str]


def why_not(row: Row) -> str:
    """Why a row is left out; "" where it is not."""
    if "disaggregated" in row["note"]:
        return "prefills and decodes apart"
    if row["engine"] not in ENGINES:
        return f"no rules for {row['engine']}"
    if not row["engine_version"]:
        return "its image is not stored"
    return "suspect" if "suspect" in row["note"] else ""


def deployment_of(row: Row) -> str:
    """In the shorthand of `simulate`, with the engine's arguments."""
    engine, gpus, users = ENGINES[row["engine"]], int(row["tp"]), int(row["concurrency"])
    gpu, amd = row["gpu"].lower(), row["gpu"].startswith("MI")
    weights = "fp8" if row["precision"] == "fp8" else "mxfp4" if amd else "nvfp4"
    drafts, shared = "mtp" in row["note"], "dp attention" in row["note"]
    version = row["engine_version"].lstrip("v").partition("-")[0]
    parts = [f"tp1,dp{gpus}" if shared else f"tp{gpus}"]
    parts += [f"ep{row['ep']}"] if int(row["ep"]) > 1 else []
    parts += ["attention-dp"] if shared else []
    parts += [f"engine={engine}", f"version={version}"]
    # H200's SGLang scripts alone leave the cache as the checkpoint has it, in 16 bits.
    parts += [] if engine == "sglang" and gpu == "h200" else ["kv=fp8"]
    given = (
        sglang(row, gpu, amd, users, drafts)
        if engine == "sglang"
        else tensorrt_llm(row, gpu, users, drafts)
    )
    parts += [f"{name}={value}" for name, value in given.items() if value is not None]
    return f"deepseek-r1:{weights}@{gpus}x{gpu}/{','.join(parts)}"


def sglang(row: Row, gpu: str, amd: bool, users: int, drafts: bool) -> dict[str, object]:
    long = row["input_len"] == "8192"
    if amd:
        newer = gpu == "mi355x"
        chunk = 196_608 if newer else 131_072
        if row["precision"] == "fp4" and long and users > 32:
            chunk = 32_768
        # With drafts MI355X's script in FP8 gives as many places as users, and MI325X's runs had
        # them; in FP4 none are given: SGLang's 48.
        given = users if drafts and not (newer and row["precision"] == "fp4") else None
        return {
            "chunked_prefill_size": chunk, "mem_fraction_static": 0.8, "max_running_requests": given,
            "num_speculative_tokens": 3 if drafts else None,
        }  # fmt: skip
    two = 2 if drafts else None
    if gpu == "h200":
        return {
            "chunked_prefill_size": 32_768, "mem_fraction_static": 0.82,
            "max_running_requests": 256 if long else 512, "num_speculative_tokens": two,
        }  # fmt: skip
    poll = 30 if users >= 16 else 10
    if drafts:
        places, share, chunk = 512, 0.82, 16_384
    elif row["precision"] == "fp4":
        places, share, chunk = 256, 0.85, 16_384
    elif row["tp"] == "4":
        places, share, chunk, poll = 32, 0.95, 8192, 10
    else:
        places, share, chunk = 128, 0.82, 32_768
    return {
        "chunked_prefill_size": chunk, "mem_fraction_static": share, "max_running_requests": places,
        "scheduler_recv_interval": poll, "num_speculative_tokens": two,
    }  # fmt: skip


def tensorrt_llm(row: Row, gpu: str, users: int, drafts: bool) -> dict[str, object]:
    tp, shared = int(row["tp"]), "dp attention" in row["note"]
    fp8, b200, short = row["precision"] == "fp8", gpu == "b200", row["input_len"] == "1024"
    guessed = (1 if shared else 3) if drafts else 0
    # With drafts a rank's places are its share of the users: an eighth, of FP4 on B200 a quarter.
    ranks = (tp if not b200 else 8 if fp8 else 4) if shared else 1
    places = max(1, users // ranks) if drafts else None
    room = (
        (((guessed + 1) * places if places else users) + int(row["input_len"]) + 64 + 63) // 64 * 64
    )
    tokens = room if drafts else max(room, 8192)
    if not b200:
        graphs = False
    elif drafts:
        graphs = not shared and (
            users > (4 if short else 16) if fp8 else short and 32 <= users <= 128
        )
    else:
        graphs = users >= 64 if fp8 else short and row["tp"] == row["ep"] == "8"
    gathers = b200 and fp8 and not drafts and short and users >= 64
    share = 0.75 if not b200 else 0.7 if shared and drafts and fp8 else 0.8
    if b200 and fp8 and not drafts and not short and tp == 4:
        share = 0.75
    return {
        "max_num_tokens": tokens, "max_batch_size": places, "free_gpu_memory_fraction": share,
        "timeout_iters": 60 if shared else None,
        "batch_wait_timeout_iters": 40 if gathers else None, "batch_wait_max_tokens_ratio": 0.8 if gathers else None,
        "capture_num_tokens": tokens if graphs else None, "num_speculative_tokens": guessed or None,
    }  # fmt: skip


def point_of(row: Row) -> dict[str, str]:
    users = row["concurrency"]
    return {
        "source": SOURCE, "deployment": deployment_of(row), "input_len": row["input_len"],
        "output_len": row["output_len"], "arrival": "concurrency", "arrival_value": users,
        "num_prompts": str(10 * int(users)), "ttft_ms_median": row["ttft_ms_median"],
        "tpot_ms_median": row["tpot_ms_median"], "output_tok_s": row["out_tok_s"], "mode": "serving",
        "range_ratio": "0.8", "acceptance": ACCEPTANCE, "stat": "median", "fold": "deepseek-v3",
        "notes": f"{row['engine_version']}; run {row['note'].split()[2]}",
    }  # fmt: skip


def main() -> None:
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    left_out = Counter(map(why_not, rows))
    writer.writerows(point_of(row) for row in rows if not why_not(row))
    print(
        "; ".join(f"{count} {reason or 'kept'}" for reason, count in left_out.most_common()),
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
