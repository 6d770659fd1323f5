"""Ranks on other hosts, and networks between them."""
