"""Loans of nodes, carried out at once."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from elastic_tfjob.scheduling.plan import Loan
from elastic_tfjob.scheduling.snapshot import Node, Pool


def carry_out_loans(
    loans: Iterable[Loan], nodes: Mapping[str, Node], pools: Mapping[str, Pool]
) -> tuple[dict[str, Node], dict[str, Pool]]:
    """The nodes and the demand of pools once these nodes are borrowed or given back."""
    nodes, pools = dict(nodes), dict(pools)
    for loan in loans:
        node = nodes[loan.node]
        pool = pools[node.pool]
        if loan.action == "borrow":
            nodes[loan.node] = replace(node, loan="loaned")
            pools[node.pool] = replace(pool, spare=pool.spare - 1)
        elif pool.wanted:
            nodes[loan.node] = replace(node, loan="busy")
            pools[node.pool] = replace(pool, wanted=pool.wanted - 1)
        else:
            nodes[loan.node] = replace(node, loan="offered")
            pools[node.pool] = replace(pool, spare=pool.spare + 1)
    return nodes, pools
