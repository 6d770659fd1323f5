"""How time is measured in a rank: iterations, steps, blocks, and the clocks of the host and the device."""
