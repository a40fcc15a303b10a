"""Run the benchmarks: python -m gpubench OUT.json [--budget SECONDS] [--device cuda|cpu] [--only
GROUP]…"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpubench import session
from gpubench.points import best
from loadstone.core.errors import InputError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpubench")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--budget", type=float, default=session.BUDGET_S, help="seconds")
    parser.add_argument(
        "--device",
        default="cuda",
        choices=("cuda", "cpu"),
        help="cpu: tiny shapes, to try the code",
    )
    parser.add_argument("--only", action="append", default=[], help="groups whose name begins so")
    parsed = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        bench = session.run(
            parsed.out, parsed.budget, say, device=parsed.device, only=tuple(parsed.only)
        )
    except InputError as error:
        print(f"gpubench: {error}", file=sys.stderr)
        return error.exit_code
    for name, rate in best(bench).items():
        say(f"{name} {rate:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
