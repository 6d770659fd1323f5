"""What runs inside a rank. Nothing here knows pytest; of this package only records and collectives are imported."""
