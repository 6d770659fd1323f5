"""What this machine is, and who holds it."""
