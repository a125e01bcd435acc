"""What memories stand for: the geometry of keys and values, roles, polysemanticity."""
