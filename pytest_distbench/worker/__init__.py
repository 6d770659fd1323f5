"""What runs inside a rank: its life, its context, and what it records. It imports no pytest."""
