"""The `isotherm` command."""
