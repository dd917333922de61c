"""A binding while the worker owns it: its share of a pipeline's node, and its routes."""

from __future__ import annotations

import threading
from typing import Any, Dict, Optional, Tuple

from . import messages
from .agent import Agent
from .messages import Endpoint, Next
from .owned import Key, Owned, Owning


class Binding(Owned):
    """A share of a pipeline's node while this worker owns it.

    Leaving its `with` block lets it go."""

    def __init__(self, owning: Owning[Any], lease: messages.Binding) -> None:
        super().__init__(owning, lease)
        #: The pipeline.
        self.pipeline = lease.pipeline
        #: The node of it that this worker serves.
        self.node = lease.node
        #: Which of the node's shares it is, from 0.
        self.index = lease.index
        #: The share of the load that is this worker's. It lasts as long as the token does.
        self.documents_per_second = lease.documents_per_second
        #: Where documents go from here, by node, at this moment; empty at the end of the pipeline.
        self.next = lease.next
        self._turns, self._turn = Turns(), threading.Lock()

    @property
    def key(self) -> Key:
        """The pipeline, the node and the share's index."""
        return (self.pipeline, self.node, str(self.index))

    def pick(self, node: str) -> Optional[Endpoint]:
        """Where the next document for `node` goes: its workers take turns in proportion to their
        shares of the load, those that drain only if no other is left. None if no worker
        serves the node at this moment, or if no node of that name comes next."""
        for route in self.next:
            if route.node == node:
                with self._turn:
                    return self._turns.pick(route)
        return None

    def renew(self, asked_ns: int, lease: messages.Binding, spare_ns_max: int) -> None:
        """What the agent says of it. The caller holds the state."""
        self.next = lease.next
        super().renew(asked_ns, lease, spare_ns_max)

    @staticmethod
    def listed(lease: messages.Lease) -> Tuple[messages.Binding, ...]:
        """The bindings of a lease."""
        return lease.bindings

    @staticmethod
    def key_of(lease: messages.Binding) -> Key:
        """The pipeline, the node and the share's index."""
        return (lease.pipeline, lease.node, str(lease.index))

    @staticmethod
    def send_release(agent: Agent, key: Key, token: str) -> None:
        """Reports the release to the agent."""
        agent.release("bindings", key, token)


class Turns:
    """Whose turn it is, node by node: smooth weighted round robin, as nginx has it.

    Among workers that stay the same, no count is ever a whole turn away from its share."""

    def __init__(self) -> None:
        self._nodes: Dict[str, Dict[str, int]] = {}

    def pick(self, route: Next) -> Optional[Endpoint]:
        """The worker whose turn it is."""
        stay = [it for it in route.endpoints if not it.draining]
        open_now = stay or list(route.endpoints)
        weights = [_load_milli(it) for it in open_now]
        if not any(weights):
            # Without loads, all take the same.
            weights = [1] * len(open_now)
        total = sum(weights)
        before = self._nodes.get(route.node, {})
        credits = self._nodes[route.node] = {}
        best: Optional[Endpoint] = None
        for endpoint, weight in zip(open_now, weights):
            # No credit of other workers or loads is worth more than a round.
            credit = max(-total, min(total, before.get(endpoint.worker, 0))) + weight
            credits[endpoint.worker] = credit
            if weight and (not best or credit > credits[best.worker]):
                best = endpoint
        if best is not None:
            credits[best.worker] -= total
        return best


def _load_milli(endpoint: Endpoint) -> int:
    """The load in thousandths: sums of these are exact."""
    return max(0, round(endpoint.documents_per_second * 1000))
