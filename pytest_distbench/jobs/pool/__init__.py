"""The controller of a pool: shares slots out among jobs and a serving."""
