"""What ``distbench`` can do, one module per noun. A command yields the lines it prints."""
