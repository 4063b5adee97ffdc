"""Measuring an engine in this process: answers, rounds of variants, what the device does; what benchmarks share."""
