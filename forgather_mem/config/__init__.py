"""Templates to objects: text, rendered text, graph, policy, construction."""
