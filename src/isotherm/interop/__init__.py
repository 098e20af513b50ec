"""Bridges to other libraries, one file each, imported only on use."""
