"""Detection of nodes that contradict the majority, without which a run may continue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping

from fedgraph.federation.roll_call import Answer


def contradictions(answers: Mapping[int, Answer]) -> dict[int, str]:
    """Find conflicting nodes by their answers to the opening query.

    Each node has one vote, independent of its number of clients. Of two nodes with the same client, the one in conflict
    with more nodes is excluded, or both in a tie. Returns reasons by node id. Without a majority value no node is
    excluded for it.
    """
    hosting = {node: answer for node, answer in answers.items() if answer.clients}
    counts: dict[int, Hashable] = {n: a.partition[1] for n, a in answers.items() if a.partition is not None}
    found = dict.fromkeys(_outvoted(counts), "its 'num-partitions' is not that of most nodes")
    alike = {node: answer.alike for node, answer in hosting.items() if node not in found}
    found |= dict.fromkeys(_outvoted(alike), "it holds, or tells of, other data than most nodes")
    return found | _disputing({node: answer for node, answer in hosting.items() if node not in found})


def _outvoted(votes: Mapping[int, Hashable]) -> list[int]:
    """Return the nodes that are outvoted; none in a tie."""
    ranking = Counter(votes.values()).most_common(2)
    if not ranking or (len(ranking) == 2 and ranking[0][1] == ranking[1][1]):
        return []
    return [node for node, vote in votes.items() if vote != ranking[0][0]]


def _disputing(answers: Mapping[int, Answer]) -> dict[int, str]:
    """Return the nodes with a client that another node also hosts."""
    hosts: dict[str, list[int]] = defaultdict(list)
    for node, answer in answers.items():
        for name in answer.clients:
            hosts[name].append(node)
    disputed = {name: set(nodes) for name, nodes in hosts.items() if len(nodes) > 1}
    found: dict[int, str] = {}
    while disputed:
        others: dict[int, set[int]] = defaultdict(set)
        for nodes in disputed.values():
            for node in nodes:
                others[node] |= nodes - {node}
        most = max(map(len, others.values()))
        worst = [node for node, against in others.items() if len(against) == most]
        for node in worst:
            name = next(name for name, nodes in disputed.items() if node in nodes)
            found[node] = (
                f"it says that it hosts client '{name}', and so does another node; with [clients] public-keys only the "
                "right one can"
            )
        disputed = {name: nodes - set(worst) for name, nodes in disputed.items()}
        disputed = {name: nodes for name, nodes in disputed.items() if len(nodes) > 1}
    return found
