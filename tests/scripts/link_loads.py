#!/usr/bin/env python3
"""Adds up what each directed link carries under a plan, from the plan file alone.

    topoctl plan --from graph.json -o json > plan.json
    link_loads.py plan.json                        # all-gather
    link_loads.py plan.json --graph graph.json     # and compare with the link graph's capacities

For every link: the part of the collective's total data that crosses it, and GB/s at the bandwidth that the channels' own
rates amount to. Python's standard library only, and nothing of the programs that made the plan: all arithmetic is in
exact fractions, read from `share`, `exact_gbps` and `exact`.

Several pairs of files may be given (PLAN [--graph GRAPH] PLAN [--graph GRAPH] ...). Exit code 0: every figure agrees
and no link is overloaded; 1: something does not, said on stderr; 2: a file cannot be read.
"""

import json
import sys
from collections import defaultdict
from fractions import Fraction

COLLECTIVE = "all-gather"


class Wrong(Exception):
    """A plan whose figures contradict each other, or the graph."""


def part_on_each_hop(channel, ranks):
    """What of the collective's data crosses each hop of a channel: its share for a tree, which carries a root's data to
    everybody; N-1 of N shards for a ring; one rank's part for a pair."""
    share = Fraction(channel["share"])
    if channel["pattern"] == "ring":
        return share * (ranks - 1) / ranks
    if channel["pattern"] == "pairs":
        return share / ranks
    return share


def algbw_of_rates(channels, ranks):
    """GB/s of the collective's data that the channels' own rates amount to. Every channel must be as fast as its share."""
    found = set()
    for channel in channels:
        rate = Fraction(channel["exact_gbps"])
        # A ring's rate is that of its hops, any other's that of its data.
        scale = Fraction(ranks - 1, ranks) if channel["pattern"] == "ring" else Fraction(1)
        found.add(rate / (Fraction(channel["share"]) * scale))
    if len(found) != 1:
        raise Wrong("channels run at different speeds: %s" % ", ".join(map(str, sorted(found))))
    return found.pop()


def loads(plan, channels, names):
    """Part of the data over each directed link, by the names of its ends."""
    ranks = len(plan["ranks"])
    total = defaultdict(Fraction)
    for channel in channels:
        crossing = part_on_each_hop(channel, ranks)
        for edge in channel["edges"]:
            if sum(Fraction(path["share"]) for path in edge["paths"]) != 1:
                raise Wrong("channel %s: paths of a hop do not add up to 1" % channel["index"])
            for path in edge["paths"]:
                way = [names[edge["from"]], *path["via"], names[edge["to"]]]
                for link in zip(way, way[1:]):
                    total[link] += crossing * Fraction(path["share"])
    return total


def check_graph(graph, total, algbw):
    """No link above its capacity, and the busiest exactly full: then the bandwidth is what the graph allows."""
    capacity = defaultdict(Fraction)
    for sender, receiver, gbps in graph["links"]:
        # As the decimal stands in the file, to the last kB/s; further digits are dropped as readers of link graphs do.
        capacity[sender, receiver] += Fraction(int(Fraction(str(gbps)) * 10**6), 10**6)
    fullest = Fraction(0)
    for link, part in sorted(total.items()):
        if link not in capacity:
            raise Wrong("the graph has no link from %s to %s" % link)
        if part * algbw > capacity[link]:
            raise Wrong("%s to %s carries %s of %s GB/s" % (*link, part * algbw, capacity[link]))
        fullest = max(fullest, part * algbw / capacity[link])
    if fullest != 1:
        raise Wrong("no link is full: the busiest carries %s of its capacity" % fullest)


def add_up(plan_file, graph_file):
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    graph = None
    if graph_file is not None:
        with open(graph_file, encoding="utf-8") as file:
            graph = json.load(file)
    ranks = plan["ranks"]
    channels = [c for c in plan["channels"] if COLLECTIVE in c["collectives"]]
    if not channels:
        raise Wrong("no channel carries %s" % COLLECTIVE)
    if sum(Fraction(channel["share"]) for channel in channels) != 1:
        raise Wrong("shares do not add up to 1")
    hosts = len({rank["host"] for rank in ranks})
    names = [
        graph["gpus"][rank["gpu"]] if graph
        else ("%d:GPU%d" % (rank["host"], rank["gpu"]) if hosts > 1 else "GPU%d" % rank["gpu"])
        for rank in ranks
    ]
    total = loads(plan, channels, names)
    algbw = algbw_of_rates(channels, len(ranks))
    best = Fraction(plan["collectives"][COLLECTIVE]["best"]["exact"])
    if algbw != best:
        raise Wrong("the channels amount to %s GB/s, the plan says %s" % (algbw, best))
    if graph is not None:
        check_graph(graph, total, algbw)
    print("%s: %s %.6f GB/s = %s" % (plan_file, COLLECTIVE, algbw, algbw))
    width = max(len(sender) for sender, _ in total)
    for (sender, receiver), part in sorted(total.items()):
        print("  %-*s -> %s  %.6f GB/s  %s of the data" % (width, sender, receiver, part * algbw, part))


def main(arguments):
    files = []
    words = iter(arguments)
    for word in words:
        if word == "--graph":
            graph = next(words, None)
            if not files or graph is None:
                print(__doc__, file=sys.stderr)
                return 2
            files[-1] = (files[-1][0], graph)
        else:
            files.append((word, None))
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    worst = 0
    for plan_file, graph_file in files:
        try:
            add_up(plan_file, graph_file)
        except Wrong as error:
            print("%s: %s" % (plan_file, error), file=sys.stderr)
            worst = max(worst, 1)
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            print("%s: %s: %s" % (plan_file, type(error).__name__, error), file=sys.stderr)
            worst = 2
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
