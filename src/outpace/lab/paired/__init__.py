"""Is B faster than A? Interleaved blocks, a paired ratio with an interval, a control, a guard and a verdict."""
