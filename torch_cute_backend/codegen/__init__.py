"""From a checked program to readable CuTe DSL source."""
