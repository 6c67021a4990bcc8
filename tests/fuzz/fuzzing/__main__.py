"""Fuzz methods with mutated replies, and nodes with mutated requests.

    PYTHONPATH=tests/fuzz python -m fuzzing replies 10000
    PYTHONPATH=tests/fuzz python -m fuzzing replies 1000 --only fedavg --only f3
    PYTHONPATH=tests/fuzz python -m fuzzing requests 2000

prints for every method how many replies were tried, how many runs they ended, in how many results there was a number
that is not finite, and how many were finite but beyond a million. ``--keep FILE`` adds failing examples to a file of
regressions.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from fuzzing.experiments import NAMES
from fuzzing.mutations import MUTATIONS
from fuzzing.replay import DELIVERIES, Case, Method, workplace
from fuzzing.requests import OWN, node_of, recorded_requests, try_request


def cases(method: Method, count: int, seed: int = 0):
    """Examples of a method: every reply of the recorded run gets its turn, and the opening query every third."""
    chance = random.Random(f"{method.name} {seed}")
    names = [*MUTATIONS, *DELIVERIES]
    for number in range(count):
        opening = number % 3 == 0
        reply = chance.randrange(method.opening if opening else method.replies)
        # Those of the content say more than those of the whole.
        yield Case(method.name, reply, names[number % len(names)], chance.randrange(10**6))


def peak() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fuzz_replies(names, count, seed, keep):
    failing = []
    print(f"{'method':24}{'replies':>8}{'applied':>8}{'ended':>7}{'unforeseen':>11}{'broken':>8}{'absurd':>8}"
          f"{'MiB':>8}{'s':>7}")  # fmt: skip
    total = Counter()
    for name in names:
        with workplace() as folder:
            began, method = time.monotonic(), Method.recorded(name, folder)
            tally, before, why = Counter(), peak(), Counter()
            for case in cases(method, count, seed):
                found = method.try_case(case)
                tally["tried"] += 1
                tally["applied"] += found.applied
                tally["ended"] += bool(found.ended)
                tally["unforeseen"] += bool(found.ended) and not found.foreseen
                tally["broken"] += bool(found.broken)
                tally["absurd"] += bool(found.absurd)
                if found.ended or found.broken:
                    failing.append(case)
                    why[f"{case.mutation} of reply {case.reply}: {(found.ended or found.broken)[:250]!r}"] += 1
            print(
                f"{name:24}{tally['tried']:8}{tally['applied']:8}{tally['ended']:7}{tally['unforeseen']:11}"
                f"{tally['broken']:8}{tally['absurd']:8}{peak() - before:8.0f}{time.monotonic() - began:7.0f}",
                flush=True,
            )
            for text, times in why.most_common(30):
                print(f"    {times} x {text}")
            total += tally
    print({**total})
    remember(failing, keep)


def fuzz_requests(names, count, seed, keep):
    failing, total = [], Counter()
    print(f"{'method':24}{'requests':>9}{'applied':>8}{'refused':>8}{'unforeseen':>11}{'hung':>6}{'opened':>7}{'long':>6}"
          f"{'slowest':>9}{'MiB':>7}")  # fmt: skip
    for name in names:
        with workplace() as folder:
            method = Method.recorded(name, folder)
            requests = recorded_requests(method)
            grid = node_of(method)
            chance, tally, why, slowest, before = random.Random(f"{name} {seed}"), Counter(), Counter(), 0.0, peak()
            mutations = [*MUTATIONS, *OWN, *OWN]
            for number in range(count):
                case = Case(
                    name, chance.randrange(len(requests)), mutations[number % len(mutations)], chance.randrange(10**6)
                )
                found = try_request(grid, requests, case)
                slowest = max(slowest, found.seconds)
                for key in ("applied", "refused", "hung", "long"):
                    tally[key] += bool(getattr(found, key))
                tally["tried"] += 1
                tally["unforeseen"] += bool(found.unforeseen)
                tally["opened"] += bool(found.opened)
                if found.failed:
                    failing.append(case)
                    why[f"{case.mutation} {case.reply} {case.seed}: {found.failed[:250]!r}"] += 1
            print(
                f"{name:24}{tally['tried']:9}{tally['applied']:8}{tally['refused']:8}{tally['unforeseen']:11}"
                f"{tally['hung']:6}{tally['opened']:7}{tally['long']:6}{slowest:9.1f}{peak() - before:7.0f}",
                flush=True,
            )
            for text, times in why.most_common(30):
                print(f"    {times} x {text}")
            total += tally
    print({**total})
    remember(failing, keep)


def remember(failing, keep):
    """Add failing examples to a file."""
    if keep is not None:
        known = json.loads(keep.read_text()) if keep.exists() else []
        known += [asdict(case) for case in failing if asdict(case) not in known]
        keep.write_text("[\n" + ",\n".join(json.dumps(case) for case in known) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["replies", "requests"])
    parser.add_argument("count", type=int)
    parser.add_argument("--only", action="append", choices=NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    given = parser.parse_args()
    names = given.only or NAMES
    fuzz = fuzz_replies if given.what == "replies" else fuzz_requests
    fuzz(names, -(-given.count // len(names)), given.seed, given.keep)


if __name__ == "__main__":
    main()
