"""How work runs and stops: asks and how they fold, the tree of nodes, the supervisor, the ladder, the clock.

Nothing in here knows about models, HTTP or JSON, and nothing in here imports an outer ring.
"""
