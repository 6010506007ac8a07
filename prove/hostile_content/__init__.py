"""The stage of hostile content: what a filter decided is what its handlers get."""
