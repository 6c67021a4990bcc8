"""Methods with mutated replies, and nodes with mutated requests: how many were tried, and what came of them."""

from __future__ import annotations

import json
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from disturbances.mutations import MUTATIONS
from disturbances.replay import DELIVERIES, Case, Method
from disturbances.requests import OWN, Answer, node_of, recorded_requests, try_request
from disturbances.results import Judgement, workplace

COLUMNS = {
    "replies": ("applied", "ended", "unforeseen", "broken", "absurd"),
    "requests": ("applied", "refused", "unforeseen", "hung", "opened", "long"),
}


def reply_cases(method: Method, count: int, seed: int = 0) -> Iterator[Case]:
    """Examples of a method: every reply of the recorded run gets its turn, and the opening query every third."""
    chance = random.Random(f"{method.name} {seed}")
    names = [*MUTATIONS, *DELIVERIES]
    for number in range(count):
        opening = number % 3 == 0
        reply = chance.randrange(method.opening if opening else method.replies)
        # Those of the content say more than those of the whole.
        yield Case(method.name, reply, names[number % len(names)], chance.randrange(10**6))


def tried(what: str, method: Method, count: int, seed: int) -> Iterator[tuple[Case, Judgement | Answer]]:
    """Try examples of a method, one after the other."""
    if what == "replies":
        for case in reply_cases(method, count, seed):
            yield case, method.try_case(case)
        return
    requests, chance = recorded_requests(method), random.Random(f"{method.name} {seed}")
    grid, names = node_of(method), [*MUTATIONS, *OWN, *OWN]
    for number in range(count):
        reply = chance.randrange(len(requests))
        case = Case(method.name, reply, names[number % len(names)], chance.randrange(10**6))
        yield case, try_request(grid, requests, case)


def fuzz(what: str, names: list[str], count: int, seed: int = 0, keep: Path | None = None) -> bool:
    """Print a line for every method, with what failed below; returns whether nothing did."""
    failing: list[Case] = []
    total: Counter[str] = Counter()
    columns = ("tried", *COLUMNS[what])
    print(f"{'method':24}" + "".join(f"{name:>11}" for name in (*columns, "MiB", "s")))
    for name in names:
        with workplace() as folder:
            began, method, before = time.monotonic(), Method.recorded(name, folder), _peak()
            tally, why = Counter[str](), Counter[str]()
            for case, found in tried(what, method, count, seed):
                tally.update({"tried": 1, **{key: bool(getattr(found, key)) for key in COLUMNS[what]}})
                if found.failed:
                    failing.append(case)
                    why[f"{case.mutation} of {case.reply}: {found.failed[:250]!r}"] += 1
            numbers = [*(tally[key] for key in columns), round(_peak() - before), round(time.monotonic() - began)]
            print(f"{name:24}" + "".join(f"{number:11}" for number in numbers), flush=True)
            for text, times in why.most_common(30):
                print(f"    {times} x {text}")
            total += tally
    print({**total})
    if keep is not None:
        _remember(failing, keep)
    return not failing


def _remember(failing: list[Case], keep: Path) -> None:
    """Add failing examples to a file."""
    known = json.loads(keep.read_text()) if keep.exists() else []
    known += [asdict(case) for case in failing if asdict(case) not in known]
    keep.write_text("[\n" + ",\n".join(json.dumps(case) for case in known) + "\n]\n")


def _peak() -> float:
    """Peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
