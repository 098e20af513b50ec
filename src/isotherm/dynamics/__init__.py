"""Langevin dynamics: exact flows, thermostats, integrators and their order of accuracy."""
