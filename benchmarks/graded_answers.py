"""False alarms and power of the comparison of graded answers, on simulated servers that flip some
of them.

    python benchmarks/graded_answers.py [--pairs 400]

A server answers 80 % of the questions right, by question; in each run a share `noise` of the
answers flips either way. The table has, by number of questions and noise, how many of the pairs A
against A are told apart, how many of the pairs whose B loses what is said to show, and that loss.
"""

from __future__ import annotations

import argparse
import random

from loadstone.analyse.grading.paired import ComparedAnswers, compare_pairs
from loadstone.analyse.grading.pairs import detectable_loss
from loadstone.core.run_folder import GradedAnswer


def answer(number: int, right: bool) -> GradedAnswer:
    return GradedAnswer(
        request_id=f"0-{number}", cell=0, question=str(number), task="", ended=True, cut=False, thinking=False,
        parsed=True, strict=right, right=right, crossed=False, tokens=0, digest=str(right), marks=[],
    )  # fmt: skip


def flipping(count: int, noise: float, lost: float, rng: random.Random) -> ComparedAnswers:
    """Pair a server of 80 % right answers with one that flips `noise` of them and loses `lost`
    besides."""
    pairs = []
    for number in range(count):
        drawn, share = rng.random(), noise / 2
        flips = drawn < 2 * share + lost
        a = drawn < share + lost if flips else rng.random() < 0.8
        pairs.append((answer(number, a), answer(number, a != flips)))
    return compare_pairs(pairs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=400)
    count = parser.parse_args().pairs
    print("questions  noise  told apart A/A  found  loss in points")
    for questions in (200, 500, 1319):
        for noise in (0.02, 0.13):
            rng = random.Random(f"{questions} {noise}")
            loss = detectable_loss(questions, noise) or 0.0
            alarms, found = (
                sum(flipping(questions, noise, lost, rng).differs for _ in range(count)) / count
                for lost in (0.0, loss)
            )
            print(f"{questions:9}  {noise:5.0%}  {alarms:14.1%}  {found:5.0%}  {100 * loss:14.1f}")


if __name__ == "__main__":
    main()
