"""What one attempt is: the node part, its pipe, launchers, outcomes, benchmarks."""
