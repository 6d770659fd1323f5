"""Tools around a run: doctor, init, history, imports and exports."""
