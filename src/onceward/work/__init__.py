"""From a job to its settlement."""
