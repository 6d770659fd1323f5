"""What surrounds a run: doctor, init, history, imports and exports."""
