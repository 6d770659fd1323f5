"""Networks between hosts that are namespaces of this one: made by a process of their own, probed, and gone with it."""
