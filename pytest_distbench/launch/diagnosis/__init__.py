"""What became of the ranks of a launch that failed, and which failure caused the others."""
