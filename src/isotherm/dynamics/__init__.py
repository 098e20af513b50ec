"""Thermostats, exact sub-flows and the integrators composed of them."""
