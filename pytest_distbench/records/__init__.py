"""The nouns: frozen records, the tables of kinds, and what travels on wires and in files."""
