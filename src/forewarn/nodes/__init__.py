"""Several nodes, one service: who leads, how the others follow, and how they send changes to the leader."""
