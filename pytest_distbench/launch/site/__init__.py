"""Where the ranks of a launch live, and the only way from the controller to them."""
