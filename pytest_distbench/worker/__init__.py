"""What runs inside a rank: its life, its context, and what it records. Nothing here knows pytest.

It imports records, errors and what lies below them, so that a rank starts as fast as torch lets it.
"""
