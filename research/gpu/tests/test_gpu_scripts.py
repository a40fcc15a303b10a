"""The scripts for a machine with a GPU: the models that they make, and the wheels that they pack
for it."""

from __future__ import annotations

import json
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

import model_folder
import one_gpu
from loadstone import catalogue
from loadstone.core.errors import InputError

SCRIPTS = Path(__file__).resolve().parents[1]


def test_a_model_folder_has_a_token_for_every_id(tmp_path: Path) -> None:
    model_folder.write(tmp_path, model_folder.config_of("llama-3.1-8b"))
    config, tokenizer = (
        json.loads((tmp_path / name).read_text()) for name in ("config.json", "tokenizer.json")
    )
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["vocab_size"] == 128256
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(128256))
    # Another engine's reader of the same folder: ours.
    assert catalogue.model(str(tmp_path / "config.json")).hidden == 4096


def test_a_vocabulary_too_small_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least"):
        model_folder.write(tmp_path, {"vocab_size": 100})


def test_packed_wheels_come_out_as_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing/__init__.py", "word = 'here'\n")
        file.writestr("thing/large.so", "x" * 1000)
        file.writestr("thing/kernels.so", fat_binary((2, 80, b"a" * 64), (2, 90, b"b" * 64)))
        file.writestr(
            "thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n"
        )
        file.writestr(
            "thing-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        file.writestr("thing-1.dist-info/RECORD", "")
    packed, site, leave = tmp_path / "parts", tmp_path / "site", tmp_path / "leave.txt"
    leave.write_text("*/large.so\n")
    command = [SCRIPTS / "pack", "--gpu", "90", "--leave", leave, "--mib", "1", packed, wheel]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert [path.name for path in packed.iterdir()] == ["part.00"]
    site.mkdir()
    subprocess.run(
        ["tar", "--extract", "--xz", "--directory", site, "--file", packed / "part.00"], check=True
    )
    assert sorted(path.name for path in (site / "thing").iterdir()) == ["__init__.py", "kernels.so"]
    kept = (site / "thing" / "kernels.so").read_bytes()
    assert b"b" * 64 in kept
    assert b"a" not in kept


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """As CUDA 13 writes them: entries of (kind, capability, payload)."""
    body = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(payload), capability) + payload
        for kind, capability, payload in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


PTX, CODE = 1, 2


@pytest.mark.parametrize(
    ("there", "left"),
    [
        (((CODE, 80), (CODE, 90), (CODE, 100), (PTX, 90)), [(CODE, 90)]),
        (((CODE, 90), (CODE, 80), (CODE, 90)), [(CODE, 90), (CODE, 90)]),
        (
            ((CODE, 80), (PTX, 75), (PTX, 80), (PTX, 100)),
            [(PTX, 80)],
        ),  # a driver translates the newest that it may
        (((CODE, 100), (CODE, 75)), [(CODE, 100)]),
    ],
)
def test_a_library_keeps_what_one_gpu_would_take(
    there: tuple[tuple[int, int], ...], left: list[Any]
) -> None:
    before, between, after = b"program", b"data", b"more"
    fat = fat_binary(*((kind, capability, bytes([capability]) * 16) for kind, capability in there))
    library = bytearray(before + fat + between + fat + after)
    length = len(library)
    kept, cleared = one_gpu.clear(library, 90)
    assert kept + cleared == 2 * (len(fat) - 16)
    assert len(library) == length
    for at in (len(before), len(before + fat + between)):
        assert library[at - len(between) : at] in (before[-4:], between)
        found = one_gpu.entries_at(library, at)
        assert [(each.kind, each.capability) for each in found] == left
        assert [bytes(library[each.end - 16 : each.end]) for each in found] == [
            bytes([c]) * 16 for _, c in left
        ]
        end = found[-1].end
        assert not any(library[end : at + len(fat)])  # the rest is zeros
    assert library.endswith(after)


@pytest.mark.parametrize(
    "broken",
    [
        fat_binary((7, 90, b"x" * 16)),
        fat_binary((CODE, 90, b"x" * 16))[:-4],
        fat_binary((CODE, 80, b""))[:40],
    ],
)
def test_a_library_that_makes_no_sense_stays_as_it_is(broken: bytes) -> None:
    library = bytearray(fat_binary((CODE, 80, b"x" * 16), (CODE, 90, b"y" * 16)) + broken)
    before = bytes(library)
    with pytest.raises(ValueError, match="fat binary"):
        one_gpu.clear(library, 90)
    assert library == before
