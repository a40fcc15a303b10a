"""`loadstone size`: does it fit, how long a context, how many at once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadstone.commands.flags import option
from loadstone.commands.output import print_json, print_text
from loadstone.core.errors import InputError
from loadstone.core.units import parse_counts

if TYPE_CHECKING:
    from rich.text import Text

_WHAT, _HOW, _OUT = "Deployment", "Engine", "Output"


def size(
    models: Annotated[
        list[str],
        typer.Argument(
            help="models (names or config.json, several with commas), or deployments: llama-3.1-70b@8xh200"
        ),
    ],
    gpu: Annotated[
        str | None, option(_WHAT, "GPUs of the catalogue, or files that describe one, e.g. h100,h200")
    ] = None,
    gpus: Annotated[str | None, option(_WHAT, "number of GPUs, e.g. 1,2,4,8 [default: 1]")] = None,
    context: Annotated[str | None, option(_WHAT, "tokens of a request, e.g. 8k,128k [default: the longest]")] = None,
    batch: Annotated[str, option(_WHAT, "requests of that context at once, e.g. 1,32")] = "1",
    weights_dtype: Annotated[
        str | None, option(_WHAT, "precision of the weights, e.g. bf16,fp8,int4 [default: the checkpoint's]")
    ] = None,
    kv_dtype: Annotated[
        str | None, option(_WHAT, "precision of the KV cache, e.g. bf16,fp8 [default: the model's]")
    ] = None,
    tp: Annotated[str | None, option(_WHAT, "tensor-parallel ranks, e.g. 8 [default: all GPUs of a node]")] = None,
    pp: Annotated[str | None, option(_WHAT, "pipeline stages [default: the number of nodes]")] = None,
    dp: Annotated[str | None, option(_WHAT, "data-parallel replicas [default: what tp and pp leave]")] = None,
    ep: Annotated[
        str | None,
        option(
            _WHAT, "expert-parallel ranks, each with whole experts [default: 1, a slice of each expert on every rank]"
        ),
    ] = None,
    attention_dp: Annotated[
        bool, option(_WHAT, "data-parallel attention: replicas share one set of experts", "--attention-dp")
    ] = False,
    engine: Annotated[
        str | None, option(_HOW, "vllm, sglang, tensorrt-llm, llama.cpp; several: a row each [default: vllm]")
    ] = None,
    engine_version: Annotated[
        str | None, option(_HOW, "e.g. 0.19.0 [default: the newest whose rules are known]")
    ] = None,
    gpu_memory_utilization: Annotated[
        float | None, option(_HOW, "vLLM's share of each GPU, 0 to 1 [default: that of the vLLM release]")
    ] = None,
    mem_fraction_static: Annotated[
        float | None, option(_HOW, "SGLang's share of each GPU, 0 to 1 [default: as SGLang computes it]")
    ] = None,
    argument: Annotated[
        list[str] | None, option(_HOW, "any other argument of the engine, e.g. max_num_seqs=64", "--argument", "-a")
    ] = None,
    by: Annotated[
        str | None,
        option(
            _OUT,
            "a table of two facts instead, e.g. gpus,model; weights_dtype,gpu; or model,machine (8×h100)",
        ),
    ] = None,
    show: Annotated[
        str, option(_OUT, "with --by: what the table shows: max-context, requests, kv-tokens, fits")
    ] = "max-context",
    csv: Annotated[Path | None, option(_OUT, "also write the rows to this file")] = None,
    picture: Annotated[
        Path | None, option(_OUT, "draw the memory of each GPU to this file: .png, .svg or .html")
    ] = None,
    context_map: Annotated[
        Path | None, option(_OUT, "draw the longest contexts, models by GPUs, to this file: .png, .svg or .html")
    ] = None,
    json: Annotated[bool, option(_OUT, "print the rows as JSON on stdout", "--json")] = False,
) -> None:
    """Compute whether a model fits, its longest context, its batch. By the engine's memory rules, without a GPU."""
    from loadstone.predict.sizing.many import Ask, answer, split_models, tokens_of

    given = (("gpu_memory_utilization", gpu_memory_utilization), ("mem_fraction_static", mem_fraction_static))
    arguments = [f"{name}={value}" for name, value in given if value is not None]
    document = answer(
        Ask(
            models=tuple(part for text in models for part in split_models(text)),
            gpu=_words(gpu),
            gpus=_counts(gpus, "--gpus"),
            tp=_counts(tp, "--tp"),
            pp=_counts(pp, "--pp"),
            dp=_counts(dp, "--dp"),
            ep=_counts(ep, "--ep"),
            attention_dp=attention_dp,
            weights_dtype=_words(weights_dtype),
            kv_dtype=_words(kv_dtype),
            engine=_words(engine),
            engine_version=engine_version,
            arguments=(*arguments, *(argument or ())),
            context=tokens_of(context or "", "--context"),
            batch=_counts(batch, "--batch"),
        )
    )
    _write(document, csv, picture, context_map)
    if json:
        print_json(document)
        return
    from loadstone.report.pages.sizes import render, table_of

    print_text(render(document) if by is None else table_of(document, _words(by), show), *_assumed(document))


def _assumed(document: dict[str, Any]) -> list[Text]:
    """A line for each model whose config left something open."""
    from rich.text import Text

    from loadstone.report.data.wording import clean

    said = {row["model"]: row["assumed"] for row in document["rows"] if row["assumed"]}
    return [Text(f"assumed for {clean(model)}: {clean(text, 400)}") for model, text in said.items()]


def _write(document: dict[str, Any], csv: Path | None, picture: Path | None, context_map: Path | None) -> None:
    try:
        if csv is not None:
            from loadstone.report.pages.sizes import to_csv

            csv.write_text(to_csv(document), encoding="utf-8")
        if picture is not None:
            from loadstone.report.charts.sizing import memory_picture
            from loadstone.report.charts.theme import save_picture

            save_picture(memory_picture(document["rows"]), picture)
        if context_map is not None:
            from loadstone.report.charts.sizing import contexts_picture
            from loadstone.report.charts.theme import save_picture

            save_picture(contexts_picture(document["rows"]), context_map)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot write ({error.strerror}); name another file") from error


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _counts(text: str | None, flag: str) -> tuple[int, ...]:
    return tuple(parse_counts(text, flag)) if text is not None else ()
