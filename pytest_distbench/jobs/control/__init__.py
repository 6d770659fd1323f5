"""The controller of an elastic job: a process below a guardian."""
