"""Benchmarks: one timing protocol, providers, suites, jsonl results."""
