"""What starts the ranks of a launch: a launcher is a row of the table and fulfils the contract."""
