"""Writes perfmodel/expert_kernels.json anew from the kernel tables of PyPI's aiconfigurator-core (Apache-2.0).

    pip install --no-deps --target TABLES aiconfigurator-core==0.12.0
    python benchmarks/expert_kernels.py TABLES/aiconfigurator_core/systems/data [--write FILE]

Prints what each kernel reaches and how far the fit is off. A minute on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from loadstone.calibrate.kernel_tables import fit_tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    kernels = fit_tables(arguments.tables)
    print("| engine | architecture | weights | version | floor | of bandwidth | of peak | moving | rows | off |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for each in kernels:
        print(
            f"| {each.engine} | {each.architecture} | {each.dtype} | {each.version} | {each.floor_s * 1e6:.0f} µs | "
            f"{each.memory:.2f} | {each.compute:.2f} | {each.moving:.2f} | {each.rows} | {each.off:.0%} |"
        )
    if arguments.write:
        arguments.write.write_bytes(msgspec.json.format(msgspec.json.encode(kernels), indent=1) + b"\n")


if __name__ == "__main__":
    main()
