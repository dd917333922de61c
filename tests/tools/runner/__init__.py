"""Runs the workspace's tests: builds the test binaries, runs them side by side, runs what failed
once more, and reports."""
