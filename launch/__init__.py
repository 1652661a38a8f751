"""Starting the whole platform on one machine, from outside: see README.md in this folder."""
