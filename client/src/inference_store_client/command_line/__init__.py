"""The command line `istore`: one file for each command."""
