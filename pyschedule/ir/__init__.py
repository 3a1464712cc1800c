"""The loop-nest IR: nodes, types, and what works on them without knowing any transform."""
