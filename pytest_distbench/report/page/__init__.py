"""The report page: one HTML file of a run that opens offline."""
